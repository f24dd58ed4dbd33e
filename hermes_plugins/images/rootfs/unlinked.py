"""The disk space of files that have no name any more, but that processes of a slot hold.

A program of its own, run as `python -I -S unlinked.py PID DIRECTORY`: the first process of the
slot, and the directory of its changes. It prints megabytes. No walk through the directory finds
such files, and their space is free only when the last process that has them open ends.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator


def is_idle(first_pid: int) -> bool:
    """Whether a slot has no other process, so that nobody holds anything there."""
    try:
        namespace = os.readlink(f"/proc/{first_pid}/ns/pid")
    except OSError:
        return True
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) != first_pid and os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                return False
        except PermissionError:  # we are not root, or have fewer rights than it
            if _is_inside_some(pid):
                return False
        except OSError:
            continue
    return True


def _is_inside_some(pid: str) -> bool:
    """Whether a process is in a pid namespace below ours; anybody may ask."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", errors="replace") as file:
        return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in file)
    return False


def held(namespace: str) -> Iterator[str]:
    """Links in /proc to what processes of a pid namespace have open, or mapped into memory."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                # A thread may have a table of files for itself.
                tables = [f"/proc/{pid}/task/{name}/fd" for name in os.listdir(f"/proc/{pid}/task")]
                for table in (*tables, f"/proc/{pid}/map_files"):
                    with contextlib.suppress(OSError):
                        yield from (f"{table}/{name}" for name in os.listdir(table))


def unlinked_bytes(first_pid: int, directory: str) -> int:
    """See the module. Deleted files of the image keep their names in its layers."""
    # Not those in memory, e.g. of /dev/shm. Which of the two it is depends on the file system.
    disks = {os.stat(directory).st_dev, os.stat(f"/proc/{first_pid}/root").st_dev}
    found = {}
    for link in held(os.readlink(f"/proc/{first_pid}/ns/pid")):
        with contextlib.suppress(OSError):
            file = os.stat(link)
            is_file = file.st_dev in disks and stat.S_ISREG(file.st_mode)
            if is_file and file.st_nlink == 0:
                found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())


if __name__ == "__main__":
    sys.stdout.write(f"{unlinked_bytes(int(sys.argv[1]), sys.argv[2]) >> 20}\n")
