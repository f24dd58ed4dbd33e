"""Mounts an image's layers in a user namespace, then becomes another program there.

Or it puts the mount into a sandbox that runs, and ends.

A program of its own, run as `python -I -S boot_process.py DESCRIPTOR`, which imports nothing of
ours. The descriptor's file has a request in JSON. Nobody runs in the tree meanwhile, but its files
may be an agent's: no symbolic link in it is followed.

    <place>/lower/0, 1, ...   links to the layers; overlayfs takes 4,096 bytes of names
            points/upper      a layer of ours, with mount points that the image lacks
            changes           link to the directory that gets the changes
            work              of overlayfs, on the same file system
            merged            the tree
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import struct
import sys
from typing import Any

NEW_MOUNTS, NEW_NET = 0x00020000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 1 << 19
PR_SET_PDEATHSIG = 1
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
OPEN_TREE, MOVE_MOUNT = 428, 429
"""Numbers of system calls, the same on every processor."""
AT_FDCWD, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x8000, 1
FROM_DESCRIPTOR, TO_DESCRIPTOR = 0x04, 0x40
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
FAILED = 97

_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """The tree cannot be mounted; the text is for the operator."""


def check(result: int, what: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(uid: int, outer: int) -> None:
    """Become root of the outer user namespace, as `uid` of the host unless it is -1."""
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    check(_libc.setns(outer, 0), "the user namespace cannot be entered")
    os.close(outer)
    check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    check(_libc.unshare(NEW_MOUNTS), "no mount namespace")
    check(_libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mounts stay shared")


def own_network(nested: int) -> None:
    """Enter a network namespace with a loopback, owned by the nested user namespace.

    So its root may bind ports below 1024 there, without rights over anything else.
    """
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            check(_libc.setns(nested, 0), "the nested user namespace cannot be entered")
            check(_libc.unshare(NEW_NET), "no network namespace")
            with socket.socket() as any_socket:
                request = struct.pack("16sh14x", b"lo", IFF_UP)
                check(_libc.ioctl(any_socket.fileno(), SIOCSIFFLAGS, request), "no loopback")
            socket.send_fds(its, [b"y"], [os.open("/proc/self/ns/net", os.O_RDONLY)])
            os._exit(0)
        except OSError as error:
            its.send(str(error).encode())
        finally:
            os._exit(1)
    its.close()
    with ours:
        answer, descriptors, _, _ = socket.recv_fds(ours, 300, 1)
    os.waitpid(child, 0)
    if not descriptors:
        raise Failed(answer.decode(errors="replace") or "no network namespace")
    check(_libc.setns(descriptors[0], NEW_NET), "the network namespace cannot be entered")
    os.close(descriptors[0])


def mount_overlay(place: str, lower: list[str], upper: str | None, work: str, target: str) -> None:
    """Mount layers, highest first, on `target`; without `upper` it is read-only.

    All are names below `place`: the kernel takes 4,096 bytes of them.
    """
    os.chdir(place)
    flags = MS_NOSUID | MS_NODEV
    if upper is None and len(lower) == 1:  # overlayfs wants two
        check(_libc.mount(lower[0].encode(), target.encode(), None, MS_BIND, None), "mount")
        flags |= MS_BIND | MS_REMOUNT | MS_RDONLY
        check(_libc.mount(None, target.encode(), None, flags, None), "read-only mount")
        return
    options = "lowerdir=" + ":".join(lower)
    if upper is not None:
        # Not synced when it is unmounted: that would wait for everything that others write.
        options += f",upperdir={upper},workdir={work},volatile"
    done = _libc.mount(
        b"overlay", target.encode(), b"overlay", flags, f"{options},userxattr".encode()
    )
    if done:
        why = os.strerror(ctypes.get_errno())
        raise Failed(
            f"overlayfs cannot be mounted in a user namespace on {place} ({why}): it needs Linux "
            "5.11 and a disk with extended attributes that is no overlayfs itself, as the root of "
            "a container is; let HERMES_QUEUE_PATHS_CACHE name a directory on another one"
        )


def make_point(root: str, path: str, is_directory: bool) -> bool:
    """Whether `path` below the directory `root` can be mounted over; it is made if it is missing.

    No link is followed: a path with one in it cannot.
    """
    *parents, name = path.strip("/").split("/")
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    no_link = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        for part in (*parents, name) if is_directory else parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
            deeper = os.open(part, no_link | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = deeper
        if is_directory:
            return True
        with contextlib.suppress(FileExistsError):
            os.mknod(name, stat.S_IFREG | 0o644, dir_fd=here)
        return stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    except OSError:
        return False
    finally:
        os.close(here)


def link_layers(place: str, layers: list[str]) -> list[str]:
    """Short names of the layers, highest first."""
    os.mkdir(os.path.join(place, "lower"), 0o700)
    names: list[str] = []
    for number, layer in enumerate(layers):
        names.insert(0, f"lower/{number}")
        os.symlink(layer, os.path.join(place, names[0]))
    return names


def new_directories(place: str, *names: str) -> None:
    """Make directories below `place` that are not there."""
    for name in names:
        os.makedirs(os.path.join(place, name), 0o755, exist_ok=True)


def with_points(place: str, lower: list[str], points: list[tuple[str, bool]]) -> list[str]:
    """The layers with one of ours on top, which has the mount points that the image lacks.

    So a slot's own files, and a build's layer, have none of them.
    """
    new_directories(place, "points/upper", "points/work")
    mount_overlay(place, lower, "points/upper", "points/work", "merged")
    for path, is_directory in points:
        make_point("merged", path, is_directory)
    check(_libc.umount2(b"merged", 0), "umount")
    return ["points/upper", *lower]


def mounted(request: dict[str, Any]) -> list[str]:
    """Mount the tree; returns words for bubblewrap that mount over it."""
    place, layers = request["place"], request["layers"]
    if not layers:
        return []
    points, binds = request["points"], request["binds"]
    new_directories(place, "merged")
    lower = link_layers(place, layers)
    if points:
        extra = [(target, is_directory) for _, target, is_directory in binds]
        wanted = [(path, True) for path in request["directories"]]
        lower = with_points(place, lower, points + extra + wanted)
    upper = request["upper"]
    if upper is not None:
        new_directories(place, "work")
        os.symlink(upper, os.path.join(place, "changes"))
        # An agent may have closed its own root directory, through which bubblewrap has to go.
        os.chmod(upper, stat.S_IMODE(os.stat(upper).st_mode) | 0o555)  # noqa: S103
    mount_overlay(place, lower, None if upper is None else "changes", "work", "merged")
    # Once more: an agent's files now cover them.
    for path, is_directory in points:
        if not make_point("merged", path, is_directory):
            raise Failed(f"{path} is no directory in the slot's files")
    words = []
    for source, target, is_directory in binds:
        if make_point("merged", target, is_directory):
            words += ["--ro-bind", source, target]
    os.chdir("/")
    return words


def put_into(tree: str, namespace: int, target: str) -> None:
    """Mount what is at `tree` at `target` of the mount namespace too; see `make_point`."""
    flags = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
    mount = _libc.syscall(OPEN_TREE, AT_FDCWD, tree.encode(), flags)
    check(mount < 0, "the image cannot be mounted there: open_tree")
    check(_libc.setns(namespace, NEW_MOUNTS), "the sandbox's files cannot be entered")
    if not make_point("/", target, True):
        raise Failed(f"{target} is no directory in the sandbox, or there is a link in it")
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in target.strip("/").split("/"):
        here = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=here)
    how = FROM_DESCRIPTOR | TO_DESCRIPTOR
    check(_libc.syscall(MOVE_MOUNT, mount, b"", here, b"", how), "the image cannot be mounted")


def take_from(namespace: int, target: str) -> None:
    """Undo `put_into`."""
    check(_libc.setns(namespace, NEW_MOUNTS), "the sandbox's files cannot be entered")
    check(_libc.umount2(target.encode(), MNT_DETACH | UMOUNT_NOFOLLOW), f"umount {target}")


def main() -> None:
    """Serve the request in the file at the descriptor of the first argument."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        request = json.load(file)
    os.umask(0o022)
    try:
        enter(request["uid"], request["outer"])
        if "into" in request:
            if request["layers"]:
                mounted(request)
                put_into(f"{request['place']}/merged", request["into"], request["target"])
            else:
                take_from(request["into"], request["target"])
            os._exit(0)
        if request["network"] == "nested":
            own_network(request["nested"])
        elif request["network"] == "none":
            check(_libc.unshare(NEW_NET), "no network namespace")
        words = mounted(request)
    except (OSError, Failed) as error:
        sys.stderr.write(f"{error}\n")
        os._exit(FAILED)
    try:
        argv = [*request["words"], *words, *request["end"]]
        os.execve(request["program"], argv, request["env"])  # noqa: S606 - our own request
    except OSError as error:
        sys.stderr.write(f"{request['program']}: {error}\n")
        os._exit(FAILED)


if __name__ == "__main__":
    main()
