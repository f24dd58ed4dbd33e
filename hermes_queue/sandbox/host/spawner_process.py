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
LOOPBACK, BACKLOG = "127.0.0.1", 128
SCRIPT = 10
"""Descriptor of a command's script; shells use those below 10 themselves."""
MOST_DESCRIPTORS = 24
NOT_STARTED = 125
"""Exit code of commands whose directory or program is missing."""

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 36, 38
CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
NO_CAPABILITIES = bytes(24)

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

    A message is the uid, the numbers of namespaces and groups, and three numbers per limit; its
    descriptors are the spawner's channel, the namespaces and the groups' cgroup.procs.
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
        uid, namespaces, groups, *limits = numbers
        channel = socket.socket(fileno=descriptors[0])
        try:
            enter(uid, descriptors[1 : 1 + namespaces])
        except OSError as error:
            tell(channel, REFUSED, value=error.errno or errno.EIO)
            os._exit(1)
        tell(channel, READY)
        triples = list(zip(limits[::3], limits[1::3], limits[2::3], strict=True))
        CommandServer(channel, descriptors[1 + namespaces :][:groups], triples).serve()
    finally:
        os._exit(1)


def enter(uid: int, namespaces: list[int]) -> None:
    """Become `uid` unless it is -1, and enter the namespaces, the outer user namespace first.

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
        _check(_libc.capset(CAPABILITY_HEADER, NO_CAPABILITIES))
        _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


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
        elif data.startswith(LISTEN):
            self._listen(int(data[len(LISTEN) :]))
        elif data:
            self._locate_or_kill(int(data))
        return bool(data)

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
            end = 2 + int(fields[1])
            variables = (each.partition(b"=") for each in fields[end:])
            environment = {name: value for name, _, value in variables}
            command = fields[0], fields[2:end], environment
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
            os.execvpe(words[0], words, environment)  # noqa: S606 - the request's own program
        except OSError as error:
            os.write(2, b"cannot start the command: %s\n" % str(error).encode(errors="replace"))


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
