"""A root file system of a few of this host's programs, for tests of slots with images."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = (
    *("bash", "cat", "chmod", "chown", "id", "kill", "ln", "ls", "mkdir", "mknod", "mount", "mv"),
    *("rm", "setsid", "sleep", "stat", "tail", "touch", "unshare", "head", "grep"),
)
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nann:x:1001:1002:Ann:/home/ann:/bin/bash\n",
    "etc/group": "root:x:0:\nann:x:1002:\nfriends:x:2000:ann\n",
    "etc/motd": "hello\n",
    "srv/kept": "kept\n",
}
DIRECTORIES = ("root", "home", "home/ann", "tmp", "srv", "etc", "opt", "usr", "usr/bin", "app")


def write_tiny_image(target: Path, programs: Sequence[str] = PROGRAMS) -> None:
    """Write the tar archive. Raises FileNotFoundError: this host has none of a program."""
    with tarfile.open(target, "w") as tar:
        for name in (".", *DIRECTORIES):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
        found = {f"usr/bin/{name}": _program(name) for name in programs}
        libraries = {path for each in found.values() for path in _libraries(each)}
        for name, path in (*found.items(), *((str(path)[1:], path) for path in libraries)):
            _add(tar, name, path)
        _link(tar, "bin", "usr/bin")


def _program(name: str) -> Path:
    path = shutil.which(name, path="/usr/bin:/bin")
    if path is None:
        raise FileNotFoundError(name)
    return Path(path).resolve()


def _libraries(program: Path) -> list[Path]:
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)]


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    entry = tarfile.TarInfo(name)
    data = path.read_bytes()
    entry.size, entry.mode = len(data), 0o755
    tar.addfile(entry, io.BytesIO(data))


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)
