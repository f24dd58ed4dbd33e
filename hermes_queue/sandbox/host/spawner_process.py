"""Forks the commands of slots: a program of its own, which a worker runs (see `spawner`).

One process of it, the server, forks a spawner for every slot. A spawner enters the slot's
namespaces once; then each command costs a fork and the command's own exec.

Nothing in a slot reaches its spawner, which stays outside of the slot's pid namespace and control
groups: no process inside has a name for it. What it forks is inside from the first moment, but
until its exec it cannot be traced, and it never ends with code 0.

The program imports nothing of ours and little else, because every slot has a copy of the process.
"""

import array
import contextlib
import ctypes
import errno
import gc
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import warnings  # noqa: F401 - os.execvpe imports it

MESSAGE = struct.Struct("=4q")
"""To the worker: one of the following kinds, the command's number, a value, nanoseconds."""
READY, REFUSED, LOCATED, FAILED, ENDED, LISTENING = range(6)
"""The slot is entered; it cannot be (errno); the command's pid; it cannot be started (errno); its
wait status, with its processor time; the port of a socket, with its descriptor."""
LISTEN = b"listen "
"""Begins the request for a listening socket; its number follows."""
KILL_ALL = b"kill all"
"""The request to kill everything in the slot's pid namespace but its first process."""
READ_FILE, WRITE_FILE = b"read file", b"write file"
"""In place of a program, after an empty word: write the regular file at a path to stdout, a number
of bytes at most; make or replace it with what stdin has."""
NO_SUCH_FILE, NO_REGULAR_FILE = 66, 73
"""Exit codes of these two."""
LOOPBACK, BACKLOG = "127.0.0.1", 128
SCRIPT = 10
"""Descriptor of a command's script; shells use those below 10 themselves."""
MOST_DESCRIPTORS = 24
NOT_STARTED = 125
"""Exit code of commands whose directory or program is missing."""

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
CAPABILITIES = 38
"""Their number in Linux 5.8, see capabilities(7); newer kernels have more."""

_libc = ctypes.CDLL(None, use_errno=True)


def receive(channel: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; no bytes when the worker has closed its end."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MOST_DESCRIPTORS * descriptors.itemsize)
    data, ancillary, _, _ = channel.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) - len(content) % descriptors.itemsize
            descriptors.frombytes(content[:whole])
    return data, list(descriptors)


def tell(
    channel: socket.socket, kind: int, number: int = 0, value: int = 0, cpu_ns: int = 0
) -> None:
    """Send a message to the worker; nothing if it is gone."""
    with contextlib.suppress(OSError):
        channel.send(MESSAGE.pack(kind, number, value, cpu_ns), socket.MSG_NOSIGNAL)


def serve_slots(channel: socket.socket) -> None:
    """Fork a spawner for every message, until the worker closes its end.

    A message is the uid, the numbers of namespaces and groups, the capabilities to keep as bits,
    and three numbers per limit; its descriptors are the spawner's channel, the namespaces and the
    groups' cgroup.procs.
    """
    # The commands of a spawner that died are inherited and reaped here: otherwise they would wait
    # for the host's first process, and the end of their pid namespace for them.
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors = receive(channel, 1024)
        if not data:
            return
        # If this fails, the worker sees the end of the channel that is closed here.
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                channel.close()
                spawn(list(map(int, data.split())), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def spawn(numbers: list[int], descriptors: list[int]) -> None:
    """Be the spawner of one slot. Never returns."""
    try:
        uid, namespaces, groups, capabilities, *limits = numbers
        channel = socket.socket(fileno=descriptors[0])
        try:
            enter(uid, descriptors[1 : 1 + namespaces], capabilities)
        except OSError as error:
            tell(channel, REFUSED, value=error.errno or errno.EIO)
            os._exit(1)
        tell(channel, READY)
        triples = list(zip(limits[::3], limits[1::3], limits[2::3], strict=True))
        CommandServer(channel, descriptors[1 + namespaces :][:groups], triples).serve()
    finally:
        os._exit(1)


def enter(uid: int, namespaces: list[int], capabilities: int) -> None:
    """Become `uid` unless it is -1, and enter the namespaces, the outer user namespace first.

    Only `capabilities` are left then, and nothing started from here can have others.

    Raises OSError: the kernel refuses.
    """
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for namespace in namespaces:
        _check(_libc.setns(namespace, 0))
        os.close(namespace)
    if namespaces:
        if capabilities:
            keep_only(capabilities)
        low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
        _check(_libc.capset(CAPABILITY_HEADER, struct.pack("=6I", low, low, 0, high, high, 0)))
        _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


def keep_only(capabilities: int) -> None:
    """Take all others from the bounding set: root's programs would begin with them."""
    for capability in range(64):
        # EINVAL: the kernel does not know it, nor those above.
        if not capabilities >> capability & 1 and _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            if capability < CAPABILITIES:
                _check(-1)
            return


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class CommandServer:
    """Starts and reaps the commands of one slot."""

    def __init__(
        self, channel: socket.socket, groups: list[int], limits: list[tuple[int, int, int]]
    ) -> None:
        """`limits`: resource, soft and hard limit; -1 = unchanged."""
        self._channel = channel
        self._groups = groups
        self._limits = limits
        self._running: dict[int, int] = {}
        """Pid -> number of the command."""
        # Not a pidfd per command: that of a dead process whose tracer lives is readable for ever,
        # while the process cannot be reaped.
        self._waker, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Python ignores these, and programs would inherit that. As an exception, SIGINT from inside
        # could take a command that is about to begin anywhere in this program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    def serve(self) -> None:
        """Serve until the worker has closed its end and the last command has ended."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        is_open = True
        while is_open or self._running:
            for descriptor, _ in poll.poll():
                if descriptor == self._waker:
                    os.read(self._waker, 4096)
                    self._reap()
                elif not self._take():
                    is_open = False
                    poll.unregister(self._channel)

    def _take(self) -> bool:
        """Take a command's number: with descriptors to start it, without any to tell its pid.

        A negative number is one to kill; one after `LISTEN` asks for a socket. Returns whether
        there was a message.
        """
        try:
            data, descriptors = receive(self._channel, 64)
        except ConnectionResetError:
            return False
        if data and descriptors:
            self._start(int(data), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        elif data == KILL_ALL:
            self._kill_all()
        elif data.startswith(LISTEN):
            self._listen(int(data[len(LISTEN) :]))
        elif data:
            self._locate_or_kill(int(data))
        return bool(data)

    def _kill_all(self) -> None:
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                # In the slot's pid namespace, where -1 means all but the first process and itself.
                with contextlib.suppress(OSError):
                    os.kill(-1, signal.SIGKILL)
                os._exit(0)

    def _listen(self, number: int) -> None:
        """Send a socket that listens inside the slot; no process of the slot ever has it."""
        try:
            with socket.socket() as listener:
                listener.bind((LOOPBACK, 0))
                listener.listen(BACKLOG)
                answer = MESSAGE.pack(LISTENING, number, listener.getsockname()[1], 0)
                sent = array.array("i", [listener.fileno()])
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)]
                self._channel.sendmsg([answer], rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            tell(self._channel, FAILED, number, error.errno or errno.EIO)

    def _locate_or_kill(self, wanted: int) -> None:
        # What is in the dictionary is not reaped yet: no other process can have its pid.
        for pid, number in self._running.items():
            if number == wanted:
                tell(self._channel, LOCATED, number, pid)
            elif number == -wanted:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _start(self, number: int, request: int, *streams: int) -> None:
        try:
            fields = os.pread(request, os.fstat(request).st_size, 0).split(b"\0")
            # Read before the fork: the child copies each page that it writes to.
            end = 3 + int(fields[2])
            variables = (each.partition(b"=") for each in fields[end:])
            environment = {name: value for name, _, value in variables}
            identity = list(map(int, fields[0].split()))
            command = identity, fields[1], fields[3:end], environment
            pid = os.fork()
        except OSError as error:
            tell(self._channel, FAILED, number, error.errno or 0)
            return
        if pid == 0:
            try:
                self._become(number, streams, *command)
            finally:
                os._exit(NOT_STARTED)
        self._running[pid] = number

    def _reap(self) -> None:
        # Whether or not a command runs: with CLONE_PARENT its processes make others that are
        # children of this one, and the end of their pid namespace would wait for us.
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if number := self._running.pop(pid, 0):
                cpu_ns = int((used.ru_utime + used.ru_stime) * 1e9)
                tell(self._channel, ENDED, number, status, cpu_ns)

    def _become(
        self,
        number: int,
        streams: tuple[int, ...],
        identity: list[int],
        directory: bytes,
        words: list[bytes],
        environment: dict[bytes, bytes],
    ) -> None:
        """Run the command in this process; returns if it cannot be run.

        From here on processes of the slot may disturb: what fails is the command's failure. Only
        its limits must be in force.
        """
        os.setsid()
        try:
            for group in self._groups:
                os.write(group, b"0")
        except OSError as error:
            tell(self._channel, FAILED, number, error.errno or 0)
            return
        try:
            for kind, soft, hard in self._limits:
                limit(kind, soft, hard)
            for target, stream in zip((0, 1, 2, SCRIPT), streams, strict=False):
                if stream != target:
                    os.dup2(stream, target)
                else:
                    os.set_inheritable(target, True)
            os.chdir(directory)
            if identity:
                uid, gid, *groups = identity
                os.setgroups(groups)
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)  # Without the capabilities, unless it is root.
            if words[0]:
                os.execvpe(words[0], words, environment)  # noqa: S606 - the request's own program
            os._exit(serve_file(*words[1:]))
        except OSError as error:
            os.write(2, b"cannot start the command: %s\n" % str(error).encode(errors="replace"))


def serve_file(what: bytes, path: bytes, size: bytes = b"0") -> int:
    """Read or write a file for the worker, see `READ_FILE`; returns the exit code.

    Without programs of the slot, which may be an agent's. Raises OSError.
    """
    is_reading = what == READ_FILE
    try:
        if not is_reading:
            os.makedirs(os.path.dirname(path) or b"/", exist_ok=True)
        how = os.O_RDONLY if is_reading else os.O_WRONLY | os.O_CREAT
        file = os.open(path, how | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if is_reading:
            return NO_SUCH_FILE
        if error.errno in (errno.EISDIR, errno.ENXIO):
            return NO_REGULAR_FILE
        os.write(2, os.strerror(error.errno or 0).encode())
        return 1
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return NO_SUCH_FILE if is_reading else NO_REGULAR_FILE
    if is_reading:
        copy(file, 1, int(size))
    else:
        os.ftruncate(file, 0)
        copy(0, file, sys.maxsize)
    return 0


def copy(source: int, target: int, size: int) -> None:
    """Copy at most `size` bytes."""
    while data := os.read(source, min(size, 1 << 16)):
        size -= len(data)
        while data:
            data = data[os.write(target, data) :]


def limit(kind: int, soft: int, hard: int) -> None:
    """Lower a limit of this process; -1 = leave it."""
    old_soft, old_hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (lower(old_soft, soft), lower(old_hard, hard)))


def lower(old: int, new: int) -> int:
    """The lower one of two limits; a new one of -1 does not limit."""
    if new < 0:
        return old
    return new if old == resource.RLIM_INFINITY else min(old, new)


def main() -> None:
    """Serve the worker at the descriptor in the first argument."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    # A spawner sees the files of its slot: it must never import one of them.
    sys.path.clear()
    sys.meta_path.clear()
    gc.freeze()
    serve_slots(channel)


if __name__ == "__main__":
    main()
