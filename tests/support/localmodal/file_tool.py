#!/opt/python/bin/python3 -IB
"""The program behind the SDK's `Sandbox.filesystem`, which runs inside the sandbox.

It is called as `modal-sandbox-fs-tools '<json>'` with one verb and its arguments. Content goes
through standard input and output; a failure is one JSON object on standard error and exit code
1. It runs without hermes_queue: standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

KINDS = {
    errno.ENOENT: "NotFound",
    errno.EISDIR: "IsDirectory",
    errno.ENOTDIR: "NotDirectory",
    errno.EACCES: "PermissionDenied",
    errno.EPERM: "PermissionDenied",
    errno.EROFS: "PermissionDenied",
    errno.ENOTEMPTY: "DirectoryNotEmpty",
    errno.EEXIST: "PathAlreadyExists",
}
READ_LIMIT_BYTES = 5 * 1024**3
COPY_BYTES = 1 << 20


def fail(kind: str, message: str) -> NoReturn:
    """Exit with an error in the SDK's format."""
    sys.stderr.write(json.dumps({"error_kind": kind, "message": message}))
    raise SystemExit(1)


def name_of(number: int, find: Callable[[int], Sequence[Any]]) -> str:
    """The name of a user or group, or its number if it has none."""
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def describe(path: str) -> dict[str, Any]:
    """Describe one entry without following links."""
    info = os.lstat(path)
    is_link = stat.S_ISLNK(info.st_mode)
    kind = "symlink" if is_link else "directory" if stat.S_ISDIR(info.st_mode) else "file"
    return {
        "name": os.path.basename(path.rstrip("/")) or "/",
        "path": path,
        "type": kind,
        "size": info.st_size,
        "mode": info.st_mode,
        "permissions": f"{stat.S_IMODE(info.st_mode):04o}",
        "owner": name_of(info.st_uid, pwd.getpwuid),
        "group": name_of(info.st_gid, grp.getgrgid),
        "modified_time": info.st_mtime,
        "symlink_target": os.readlink(path) if is_link else None,
    }


def read_file(path: str) -> None:
    """Copy the content to standard output."""
    with open(path, "rb") as source:
        if os.fstat(source.fileno()).st_size > READ_LIMIT_BYTES:
            fail("FileTooLarge", "file is too large to read")
        shutil.copyfileobj(source, sys.stdout.buffer, COPY_BYTES)


def write_file(path: str) -> None:
    """Replace the file by standard input, atomically, and create its parents."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "path is a directory")
    try:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    except FileExistsError:
        fail("NotDirectory", "a parent of the path is not a directory")
    partial = f"{path}.part-{os.getpid()}"
    try:
        with open(partial, "wb") as sink:
            shutil.copyfileobj(sys.stdin.buffer, sink, COPY_BYTES)
        if os.path.exists(path):
            os.chmod(partial, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(partial, path)
    except BaseException:
        if os.path.lexists(partial):
            os.unlink(partial)
        raise


def list_files(path: str) -> None:
    """Print the entries of a directory as JSON."""
    base = path.rstrip("/")
    json.dump([describe(f"{base}/{name}") for name in sorted(os.listdir(path))], sys.stdout)


def make_directory(path: str, parents: bool) -> None:
    """Create a directory; with `parents` it may exist already."""
    if parents:
        os.makedirs(path, exist_ok=True)
    else:
        os.mkdir(path)


def remove(path: str, recursive: bool) -> None:
    """Delete a file, a link, an empty directory, or with `recursive` a tree."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
    elif recursive:
        shutil.rmtree(path)
    else:
        os.rmdir(path)


def main() -> None:
    """Run the verb given as the argument."""
    ((verb, given),) = json.loads(sys.argv[1]).items()
    actions = {
        "ReadFile": lambda: read_file(given["path"]),
        "WriteFile": lambda: write_file(given["path"]),
        "ListFiles": lambda: list_files(given["path"]),
        "Stat": lambda: json.dump(describe(given["path"]), sys.stdout),
        "MakeDirectory": lambda: make_directory(given["path"], given.get("parents", True)),
        "Remove": lambda: remove(given["path"], given.get("recursive", False)),
    }
    if verb not in actions:
        fail("NotSupported", f"{verb} is not supported by localmodal")
    try:
        actions[verb]()
    except OSError as error:
        fail(KINDS.get(error.errno or 0, "Other"), error.strerror or str(error))


if __name__ == "__main__":
    main()
