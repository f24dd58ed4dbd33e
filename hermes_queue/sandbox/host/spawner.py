"""The worker's side of the processes that start the commands of slots, see `spawner_process`.

The worker never waits for them: it sends without blocking, and a spawner that is gone, or that
does not answer, loses the commands that it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.host import spawner_process
from hermes_queue.sandbox.host.cgroups import ControlGroups, ProcessLimit
from hermes_queue.sandbox.host.execution import Child, Running, memory_file
from hermes_queue.sandbox.host.spawner_process import (
    ENDED,
    FAILED,
    KILL_ALL,
    LISTEN,
    LISTENING,
    LOCATED,
    MESSAGE,
    READY,
    receive,
)

ANSWER_TIMEOUT_S = 30.0
GONE = "the process that starts the slot's commands is gone"
PROGRAM = spawner_process.__file__
SCRIPT_PATH = f"/dev/fd/{spawner_process.SCRIPT}"
"""Path of a command's script inside."""
MOST_BYTES_OF_ONE = 32 * os.sysconf("SC_PAGE_SIZE")
"""Of one argument or environment variable, see execve(2)."""
MOST_BYTES = 6 << 20
"""Of all of them together, however large a stack may be."""
POINTER_BYTES = 9
"""Which one of them takes beside its content."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the commands of one slot are put into."""

    namespaces: Sequence[int] = ()
    """Descriptors, in the order in which they must be entered."""
    uid: int | None = None
    """Host uid to become first; None = stay the worker's."""
    groups: ControlGroups | None = None
    limits: Sequence[ProcessLimit] = ()
    capabilities: int = 0
    """Those that root's commands have in the last namespace, as bits; see capabilities(7)."""


@dataclass(frozen=True, slots=True)
class SlotAccount:
    """Whom a command runs as, in the ids of a slot with users of its own."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    host_uid: int
    """The uid on the host."""


class Spawners:
    """Makes the spawners of one backend's slots, each a fork of one process."""

    def __init__(self, *, confined: bool) -> None:
        """`confined`: commands are under the filter of `seccomp`."""
        self._confined = confined
        self._server: Child | None = None
        self._channel: socket.socket | None = None

    async def make(self, confinement: Confinement) -> Spawner:
        """A spawner that has entered the namespaces. Raises SandboxError or OSError."""
        channel = self._running()
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        spawner = Spawner(own)
        try:
            with its, _opened(confinement.groups) as groups:
                namespaces, limits = confinement.namespaces, confinement.limits
                uid = -1 if confinement.uid is None else confinement.uid
                numbers = [uid, len(namespaces), len(groups), confinement.capabilities]
                numbers += [number for limit in limits for number in limit]
                text = " ".join(map(str, numbers)).encode()
                socket.send_fds(channel, [text], [its.fileno(), *namespaces, *groups])
            if not await spawner.has_answered():
                self._abandon(channel)
            spawner.check_begun()
        except BaseException:
            spawner.close()
            raise
        return spawner

    def _abandon(self, channel: socket.socket) -> None:
        """Have the next spawner made by another server; this one ends once it runs again."""
        if self._channel is channel:
            channel.close()
            self._channel = None

    def _running(self) -> socket.socket:
        """The channel to the server, which is started unless it runs."""
        if self._server is not None and self._channel is not None:
            if not self._server.exited.done():
                return self._channel
            self._channel.close()
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        with its:
            argv = [sys.executable, "-I", "-S", PROGRAM, str(its.fileno())]
            # No command inherits it, but some builds of Python do not start without it.
            env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
            try:
                server = Child(argv, env=env, pass_fds=[its.fileno()], confined=self._confined)
            except BaseException:
                own.close()
                raise
        self._server, self._channel = server, own
        return own

    async def close(self) -> None:
        """End the server. Spawners stay. Idempotent."""
        server, self._server = self._server, None
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        if server is not None and not await server.ended_within(ANSWER_TIMEOUT_S):
            await server.force()


@contextlib.contextmanager
def _opened(groups: ControlGroups | None) -> Iterator[list[int]]:
    """The files to enter the groups with: the kernel goes by the rights of who opened them."""
    with contextlib.ExitStack() as stack:
        opened = []
        for group in groups.groups if groups else ():
            opened.append(os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
            stack.callback(os.close, opened[-1])
        yield opened


class Spawner:
    """Starts commands in one slot. Lost when its process is, which no process inside can cause."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[int] = self._loop.create_future()
        """An errno, or 0."""
        self._commands: dict[int, SpawnedCommand] = {}
        self._sockets: dict[int, asyncio.Future[socket.socket]] = {}
        """Requested, by number."""
        self._count = 0
        self.is_lost = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done once it is lost."""
        self._loop.add_reader(channel, self._on_readable)

    async def has_answered(self) -> bool:
        """Wait until it can start commands, or cannot; returns whether it said so, or is gone."""
        await asyncio.wait([self._begun], timeout=ANSWER_TIMEOUT_S)
        return self._begun.done()

    def check_begun(self) -> None:
        """Raise SandboxError unless it can start commands."""
        if not self._begun.done() or self.is_lost:
            raise SandboxError("the process that starts a slot's commands did not start")
        if number := self._begun.result():
            raise SandboxError(f"the slot cannot be entered: {os.strerror(number)}")

    def start(
        self,
        argv: Sequence[str | bytes],
        *,
        env: Mapping[str, str],
        cwd: str,
        streams: Sequence[int],
        account: SlotAccount | None = None,
    ) -> SpawnedCommand:
        """Start a command; `streams` are its first descriptors and, if there is one, its script's.

        `account`: in a slot with users of its own; else the slot has but one.

        Raises:
            SlotLost: the process that starts commands is gone.
            OSError, ValueError: the request cannot be sent.
        """
        if self.is_lost:
            raise SlotLost(GONE)
        self._count += 1
        request = memory_file(_request(argv, env, cwd, account))
        try:
            socket.send_fds(self._channel, [b"%d" % self._count], [request, *streams])
        finally:
            os.close(request)
        command = self._commands[self._count] = SpawnedCommand(self, self._count)
        return command

    async def listen(self) -> socket.socket:
        """A socket that listens on the loopback interface of the slot; the caller closes it.

        Raises:
            SlotLost: the process that starts commands is gone, or does not answer.
            OSError: the kernel refused.
        """
        if self.is_lost:
            raise SlotLost(GONE)
        self._count += 1
        number = self._count
        answer: asyncio.Future[socket.socket] = self._loop.create_future()
        self._sockets[number] = answer
        self._send(LISTEN + b"%d" % number)
        try:
            await asyncio.wait([answer], timeout=ANSWER_TIMEOUT_S)
            if not answer.done():
                self.close()
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.exception():
                answer.result().close()
            raise
        finally:
            self._sockets.pop(number, None)

    def ask_where(self, number: int) -> None:
        """Have the pid of a running command sent."""
        self._send(b"%d" % number)

    def kill(self, number: int) -> None:
        """Kill the outermost process of a command; no-op if it has ended."""
        self._send(b"-%d" % number)

    def kill_all(self) -> None:
        """Kill everything in the slot but its first process; nothing can fork meanwhile."""
        self._send(KILL_ALL)

    def _send(self, data: bytes) -> None:
        if self.is_lost:
            return
        try:
            self._channel.send(data)
        except OSError:
            self.close()

    def _on_readable(self) -> None:
        try:
            data, descriptors = receive(self._channel, MESSAGE.size)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if len(data) == MESSAGE.size:
            self._take(MESSAGE.unpack(data), sockets)
        else:
            self.close()
        for left in sockets:
            left.close()

    def _take(self, message: tuple[int, ...], sockets: list[socket.socket]) -> None:
        """Take a message; sockets that stay in the list are closed."""
        kind, number, value, cpu_ns = message
        if number == 0:
            if not self._begun.done():
                self._begun.set_result(0 if kind == READY else value)
        elif answer := self._sockets.pop(number, None):
            if kind == LISTENING and sockets and not answer.done():
                answer.set_result(sockets.pop())
            elif not answer.done():
                answer.set_exception(OSError(value, os.strerror(value)))
        elif command := self._commands.get(number):
            if kind == LOCATED:
                command.located(value)
                return
            del self._commands[number]
            if kind == ENDED:
                command.ended(value, cpu_ns)
            elif kind == FAILED:
                command.failed(OSError(value, os.strerror(value)))

    def close(self) -> None:
        """Let it end once its commands have; nothing is known of them any more. Idempotent."""
        self.is_lost = True
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._channel.close()
        if not self._begun.done():
            self._begun.set_result(0)
        commands, self._commands = self._commands, {}
        for command in commands.values():
            command.failed(SlotLost(GONE))
        sockets, self._sockets = self._sockets, {}
        for answer in sockets.values():
            if not answer.done():
                answer.set_exception(SlotLost(GONE))
                answer.exception()  # Else asyncio complains when nobody waits any more.
        if not self.ended.done():
            self.ended.set_result(None)


class SpawnedCommand(Running):
    """A command that a spawner has started."""

    def __init__(self, spawner: Spawner, number: int) -> None:
        super().__init__()
        self._spawner = spawner
        self._number = number
        self._located: asyncio.Future[None] = self._loop.create_future()

    def located(self, pid: int) -> None:
        """It runs with this pid."""
        self.pid = pid
        if not self._located.done():
            self._located.set_result(None)

    def ended(self, status: int, cpu_ns: int) -> None:
        """It has ended."""
        self.cpu_s = cpu_ns / 1e9
        if not self.exited.done():
            self.exited.set_result(os.waitstatus_to_exitcode(status))

    def failed(self, error: Exception) -> None:
        """It was not started, or nothing more is known of it."""
        if not self.exited.done():
            self.exited.set_exception(error)
            self.exited.exception()  # Else asyncio complains when nobody waits any more.

    async def locate(self) -> None:
        """See `Running`."""
        if self.pid or self.exited.done():
            return
        self._spawner.ask_where(self._number)
        waiting: set[asyncio.Future[None] | asyncio.Future[int]] = {self._located, self.exited}
        done, _ = await asyncio.wait(
            waiting, timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            self._spawner.close()

    def end_outermost(self) -> None:
        """See `Running`: until its exec, an ordinary user cannot tell what slot it is in."""
        self._spawner.kill(self._number)

    async def force(self) -> None:
        """See `Running`: the slot is lost."""
        self._spawner.close()


def _request(
    argv: Sequence[str | bytes], env: Mapping[str, str], cwd: str, account: SlotAccount | None
) -> bytes:
    """A command as the spawner reads it.

    Raises ValueError or OSError: no command line can hold it. Later it would look like something
    that processes of the slot did to the command.
    """
    words = list(map(os.fsencode, argv))
    if any(not name or "=" in name for name in env):
        raise ValueError("an environment variable's name is empty or has a '='")
    variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    longest = max(map(len, (*words, *variables)))
    total = sum(len(each) + POINTER_BYTES for each in (*words, *variables))
    most = min(os.sysconf("SC_ARG_MAX"), MOST_BYTES) - MOST_BYTES_OF_ONE
    if longest >= MOST_BYTES_OF_ONE or total > most:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    ids = (account.uid, account.gid, *account.groups) if account else ()
    identity = " ".join(map(str, ids)).encode()
    fields = [identity, os.fsencode(cwd), b"%d" % len(words), *words, *variables]
    request = b"\0".join(fields)
    if request.count(b"\0") != len(fields) - 1:
        raise ValueError("embedded null byte")
    return request
