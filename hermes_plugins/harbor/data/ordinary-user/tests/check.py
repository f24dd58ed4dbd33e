import grp
import os
import pwd
import re
from pathlib import Path

home, drop, team = Path("/home/drop"), pwd.getpwnam("drop").pw_uid, grp.getgrnam("team").gr_gid
for name, mode in (("inbox", 0o1730), ("done", 0o2750), ("secret.txt", 0o600)):
    found = os.lstat(home / name)
    assert found.st_uid == drop, (name, found.st_uid)
    assert found.st_mode & 0o7777 in ({mode} if name != "secret.txt" else {0o600, 0o400}), (
        name,
        oct(found.st_mode),
    )
    assert name == "secret.txt" or found.st_gid == team, (name, found.st_gid)
assert not (home / "secret.txt").is_symlink()
assert re.fullmatch(r"[0-9a-f]{32}\n", (home / "secret.txt").read_text())
