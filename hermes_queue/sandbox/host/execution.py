"""Follow one command of a slot: capped output, stdin, wall-clock limit, tree kill.

asyncio's own subprocesses are not used: they start a thread per child on Python 3.11, and their
`wait()` hangs as long as a background process holds the pipes open.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hermes_queue.cancellation import unbroken
from hermes_queue.sandbox.base import TIMEOUT_EXIT_CODE, ExecutionResult
from hermes_queue.sandbox.host.paths import SLOT_UID, is_root
from hermes_queue.sandbox.host.processes import tree_cpu_s
from hermes_queue.sandbox.host.seccomp import call_confined

CHUNK_BYTES = 1 << 16
DRAIN_GRACE_S = 0.05
"""After the command's end, for output that its children still write."""

END_ROUNDS = 100
END_PAUSE_S = 0.05

Keep = Callable[[Sequence["OutputPipe"]], str]
"""Takes the pipes of an ended command, some of which may still be open; returns a notice."""

KillTree = Callable[[int], Awaitable[None]]
"""Kills all processes of the command whose outermost process has this pid."""
Start = Callable[[int, int, int], "Running"]
"""Starts a command with these descriptors as its stdin, stdout and stderr."""
CpuTime = Callable[[], float | None]
"""Processor seconds of the whole slot so far; None if they are not counted."""


class HeadTail:
    """The first and the last half of a stream that may be longer than `cap` bytes."""

    def __init__(self, cap: int) -> None:
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self.is_cut = False
        """Whether the rest of the stream is missing, though it has not ended."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_cap + CHUNK_BYTES:
            self._trim()

    def _trim(self) -> None:
        surplus = len(self._tail) - self._tail_cap
        if surplus > 0:
            del self._tail[:surplus]

    @property
    def truncated(self) -> bool:
        """Whether bytes were left out, or may have been."""
        return self.is_cut or self._total > self._head_cap + self._tail_cap

    def content(self) -> bytes:
        """The kept bytes, with a marker line where others are missing."""
        self._trim()
        left_out = self._total - len(self._head) - len(self._tail)
        marker = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        end = b"\n[... the rest did not arrive ...]\n" if self.is_cut else b""
        return bytes(self._head) + marker + bytes(self._tail) + end


class OutputPipe:
    """The read end of a command's stdout or stderr.

    A background process may hold the write end for the lifetime of its slot. It must not die of
    SIGPIPE when the command is over, so the pipe is read to its end, and the data discarded.
    """

    def __init__(self, receive: Callable[[bytes], None], *, owner: int = SLOT_UID) -> None:
        """`receive` gets the bytes; `owner` is the host uid of commands if we are root."""
        self._receive = receive
        self._reader, self.writer = os.pipe()
        """The command's end; -1 once our copy is closed."""
        os.set_blocking(self._reader, False)
        if is_root():  # Else a command could not open /dev/stderr by name.
            os.fchown(self.writer, owner, owner)
        with contextlib.suppress(OSError):  # Fewer wake-ups; the default is 64 KiB.
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, 1 << 18)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._discard = False
        self._loop.add_reader(self._reader, self._read_once)

    def close_writer(self) -> None:
        """Close our copy, once the command has its own."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def _read_once(self) -> bool:
        if self._reader < 0:
            return False
        try:
            data = os.read(self._reader, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if not self._discard:
            self._receive(data)
        return True

    def read_available(self) -> None:
        """Read the pipe's current content, at most a few pipe sizes of it."""
        for _ in range(64):
            if not self._read_once():
                return

    def discard(self) -> None:
        """Discard all further data."""
        self._discard = True

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self.close_writer()
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
        if not self.ended.done():
            self.ended.set_result(None)


class Running:
    """The outermost process of a command, and its end as a future."""

    def __init__(self) -> None:
        self.pid = 0
        """0 = unknown; see `locate`."""
        self.cpu_s = 0.0
        """After its exit: processor seconds of it and of the children that it waited for."""
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        """Its exit code, or -N after signal N; an exception if that cannot be known."""

    async def locate(self) -> None:
        """Learn its pid, unless it has ended."""

    def end_outermost(self) -> None:
        """Let the outermost process end, now that its tree is dead."""

    async def force(self) -> None:
        """End it, although its tree does not die."""
        raise NotImplementedError

    async def ended_within(self, seconds: float) -> bool:
        """Whether the process ends in time."""
        await asyncio.wait([self.exited], timeout=seconds)
        return self.exited.done()

    async def wait(self) -> int:
        """The exit code as a shell reports it; several callers may wait."""
        code = await asyncio.shield(self.exited)
        return 128 - code if code < 0 else code

    async def end(self, kill_tree: KillTree) -> None:
        """Kill it with its tree; returns when it has ended.

        One kill may not be enough: it may come before the command has entered the slot.
        """
        for _ in range(END_ROUNDS):
            if self.exited.done():
                return
            await kill_tree(self.pid)
            self.end_outermost()
            await self.ended_within(END_PAUSE_S)
        await self.force()


class Child(Running):
    """A process started from the event loop's thread.

    That thread must live as long as the worker: bubblewrap asks the kernel to be killed with its
    parent, and the parent of a process is the *thread* that forked it.
    """

    def __init__(
        self,
        argv: Sequence[str | bytes],
        *,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        cwd: str = "/",
        confined: bool = False,
    ) -> None:
        """`confined`: under the filter of `seccomp`; it then cannot rely on dying with us."""

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603 - argv is ours, the command is data in it
                argv,
                env=dict(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                cwd=cwd,
                start_new_session=True,
            )

        super().__init__()
        self._process = call_confined(start) if confined else start()
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        pid, status, used = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = used.ru_utime + used.ru_stime
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if not self.exited.done():
            self.exited.set_result(code)

    def signal(self, number: signal.Signals) -> None:
        """Signal only this process; no-op if it is over."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def end_outermost(self) -> None:
        """See `Running`: nsenter stops itself when its child is stopped."""
        self.signal(signal.SIGCONT)

    async def force(self) -> None:
        """See `Running`."""
        self.signal(signal.SIGKILL)
        await self.wait()


def memory_file(data: bytes) -> int:
    """A descriptor with `data`, positioned at its start. The caller closes it."""
    descriptor = os.memfd_create("hermes-queue", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def run(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str],
    kill_tree: KillTree,
    timeout_s: float,
    stdin: bytes = b"",
    max_output_bytes: int,
    pass_fds: Sequence[int] = (),
    cwd: str = "/",
) -> ExecutionResult:
    """Run `argv` as a child of the worker, with the descriptors `pass_fds`; see `follow`.

    Raises OSError.
    """

    def start(source: int, output: int, errors: int) -> Child:
        return Child(
            argv, env=env, stdin=source, stdout=output, stderr=errors, pass_fds=pass_fds, cwd=cwd
        )

    return await follow(
        start,
        kill_tree=kill_tree,
        timeout_s=timeout_s,
        stdin=stdin,
        max_output_bytes=max_output_bytes,
    )


async def follow(
    start: Start,
    *,
    kill_tree: KillTree,
    timeout_s: float,
    stdin: bytes = b"",
    max_output_bytes: int,
    owner: int = SLOT_UID,
    cpu_time: CpuTime = lambda: None,
    keep: Keep = lambda _: "",
) -> ExecutionResult:
    """Start a command and follow it to its end, or until `timeout_s` is over.

    `owner` is the host uid of the command if we are root. Pipes that background processes hold
    open are read until those end; `keep` limits their number.

    Cancellation kills the tree too, and is raised only when no process of it is left. Raises what
    `start` raises.
    """
    started, cpu_before = time.monotonic(), cpu_time()
    kept = HeadTail(max_output_bytes), HeadTail(max_output_bytes)
    pipes = [OutputPipe(each.feed, owner=owner) for each in kept]
    source = memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        running = start(source, pipes[0].writer, pipes[1].writer)
    except BaseException:
        for pipe in pipes:
            pipe.close()
        raise
    finally:
        os.close(source)
    for pipe in pipes:
        pipe.close_writer()
    try:
        killed_cpu_s = await _wait(running, kill_tree, timeout_s)
        await _drain(pipes)
    finally:
        for pipe in pipes:
            pipe.discard()
        notice = keep(pipes)
    timed_out = killed_cpu_s is not None
    cpu_s, cpu_after = max(running.cpu_s, killed_cpu_s or 0.0), cpu_time()
    if cpu_before is not None and cpu_after is not None:  # the slot's own count
        cpu_s = cpu_after - cpu_before
    return ExecutionResult(
        exit_code=TIMEOUT_EXIT_CODE if timed_out else await running.wait(),
        stdout=kept[0].content(),
        stderr=kept[1].content(),
        duration_s=time.monotonic() - started,
        timed_out=timed_out,
        truncated=any(stream.truncated for stream in kept),
        cpu_s=cpu_s,
        notice=notice,
    )


async def _wait(child: Running, kill_tree: KillTree, timeout_s: float) -> float | None:
    """Wait; the processor seconds of the command's tree if time ran out and it was killed."""
    try:
        async with asyncio.timeout(timeout_s):
            await child.wait()
    except TimeoutError:
        return await unbroken(_end(child, kill_tree))
    except asyncio.CancelledError:
        await unbroken(_end(child, kill_tree))
        raise
    return None


async def _end(child: Running, kill_tree: KillTree) -> float:
    """Kill the command until it is over; returns the processor seconds of its tree.

    They are read first, because nobody waits for the children of killed processes.
    """
    await child.locate()
    if not child.pid:  # It has ended, or nothing is known of it.
        return child.cpu_s
    cpu_s = await asyncio.to_thread(tree_cpu_s, child.pid)
    await child.end(kill_tree)
    return cpu_s


async def _drain(pipes: Sequence[OutputPipe]) -> None:
    for pipe in pipes:
        pipe.read_available()
    waiting = [pipe.ended for pipe in pipes if not pipe.ended.done()]
    if waiting:
        await asyncio.wait(waiting, timeout=DRAIN_GRACE_S)
