"""Commands in a sandbox: their output from any offset, their input, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from grpclib import GRPCError, Status

from hermes_queue.sandbox.host.execution import DRAIN_GRACE_S, OutputPipe, Running

CHUNK_BYTES = 256 << 10
IN_MEMORY_BYTES = 64 << 10
"""Size up to which a stream is kept in memory; a longer one is written to a file."""


class OutputLog:
    """Everything that one stream produced, readable from any offset."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        # The file has no name on disk, so nothing needs to be deleted.
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=str(directory), buffering=0)
        self._size = 0
        self._limit_bytes = limit_bytes
        self._dropped = 0
        self._open = True
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Append data."""
        kept = data[: max(0, self._limit_bytes - self._size)]
        self._dropped += len(data) - len(kept)
        self._append(kept)
        self._wake()

    def _append(self, data: bytes) -> None:
        self._file.seek(self._size)
        self._file.write(data)
        self._size += len(data)

    def finish(self) -> None:
        """Mark the end of the stream. Idempotent."""
        if self._open:
            if self._dropped:
                self._append(f"\n[{self._dropped} bytes of output dropped]\n".encode())
            self._open = False
            self._wake()

    def close(self) -> None:
        """Free the data. Readers see the end of the stream."""
        self.finish()
        self._size = 0
        self._file.close()

    def _wake(self) -> None:
        # A reader has no await between looking at `_size` and taking `_changed`: it would wait on
        # the new event for data that is there already.
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the data after `offset` as it arrives, until the stream ends."""
        while True:
            while offset < self._size:
                self._file.seek(offset)  # no await before the read: others move the position
                piece = self._file.read(min(CHUNK_BYTES, self._size - offset))
                offset += len(piece)
                yield piece
            if not self._open:
                return
            await self._changed.wait()


class InputPipe:
    """A command's standard input."""

    def __init__(self, owner: int) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        if os.geteuid() == 0:  # otherwise a command could not open /dev/stdin by name
            os.fchown(self.reader, owner, owner)
        self.written = 0
        """Number of bytes written."""
        self._turn = asyncio.Lock()

    @property
    def closed(self) -> bool:
        """Whether the pipe is closed for writing."""
        return self._writer < 0

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write the part of `data`, which begins at `offset`, that is not written yet.

        Raises:
            GRPCError: FAILED_PRECONDITION if earlier bytes are missing, or the command does not
                read.
        """
        async with self._turn:
            if offset > self.written:
                at = f"standard input is at {self.written}, not {offset}"
                raise GRPCError(Status.FAILED_PRECONDITION, at)
            fresh = memoryview(data)[self.written - offset :]
            try:
                while fresh:
                    count = await self._write_some(fresh)
                    self.written += count
                    fresh = fresh[count:]
            except OSError:
                self.close()
                raise GRPCError(
                    Status.FAILED_PRECONDITION, "the process closed its standard input"
                ) from None
            if eof:
                self.close()

    async def _write_some(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._writer, data)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                writable = asyncio.Event()
                descriptor = self._writer
                loop.add_writer(descriptor, writable.set)
                try:
                    # Check from time to time: another task may have called `close`, and
                    # `remove_writer` below may then take away that of a pipe with the same number.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(writable.wait(), 1)
                finally:
                    loop.remove_writer(descriptor)

    def close(self) -> None:
        """Close the pipe: the command reads end of file after the written data. Idempotent."""
        if self._writer >= 0:
            asyncio.get_running_loop().remove_writer(self._writer)
            os.close(self._writer)
            self._writer = -1


StartCommand = Callable[[tuple[int, int, int]], Running]
"""Starts a command with these first descriptors. Raises OSError, ValueError or SandboxError."""


class Command:
    """One process started in a sandbox, together with its descendants."""

    def __init__(
        self,
        start: StartCommand,
        *,
        kill_tree: Callable[[int], Awaitable[None]],
        owner: int,
        directory: Path,
        limit_bytes: int,
        merge: bool = False,
    ) -> None:
        """Start it with `start`.

        `kill_tree` kills the process tree of a host pid; `owner` is the host uid that owns the
        pipes; long output goes to `directory`, of each stream at most `limit_bytes`, then a note;
        `merge` sends standard error to standard output. Raises OSError if it cannot be started.
        """
        self.logs = {1: OutputLog(directory, limit_bytes), 2: OutputLog(directory, limit_bytes)}
        self.input = InputPipe(owner)
        self.done = asyncio.Event()
        """Set when it has ended and its output is complete."""
        self.ended = 0.0
        """Time of its end on the monotonic clock; 0 while it runs."""
        self._kill_tree = kill_tree
        self._pipes = {fd: OutputPipe(log.feed, owner=owner) for fd, log in self.logs.items()}
        try:
            errors = self._pipes[1 if merge else 2]
            self._child = start((self.input.reader, self._pipes[1].writer, errors.writer))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(self.input.reader)
            for pipe in self._pipes.values():
                pipe.close_writer()
        self._following = asyncio.create_task(self._follow())
        self._ending: asyncio.Task[None] | None = None

    async def _follow(self) -> None:
        readers = {fd: asyncio.create_task(self._finish_at_end(fd)) for fd in self._pipes}
        await asyncio.wait({self._child.exited})
        for pipe in self._pipes.values():
            pipe.read_available()
        # A background process may hold the pipes open. It may go on writing, but the output is
        # discarded.
        _, late = await asyncio.wait(readers.values(), timeout=DRAIN_GRACE_S)
        for task in late:
            task.cancel()
        for pipe in self._pipes.values():
            pipe.discard()
        for log in self.logs.values():
            log.finish()
        self.input.close()
        self.ended = time.monotonic()
        self.done.set()

    async def _finish_at_end(self, fd: int) -> None:
        await asyncio.shield(self._pipes[fd].ended)
        self.logs[fd].finish()

    @property
    def is_running(self) -> bool:
        """Whether its first process is running."""
        return not self._child.exited.done()

    def status(self) -> dict[str, int]:
        """{"code": n} or {"signal": n}; empty while it runs."""
        if not self.done.is_set():
            return {}
        if self._child.exited.exception() is not None:  # what it ran in has died
            return {"signal": signal.SIGKILL}
        code = self._child.exited.result()
        return {"signal": -code} if code < 0 else {"code": code}

    async def kill(self) -> None:
        """Kill its whole tree; returns when the first process has ended."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._child.locate()
        await self._child.end(self._kill_tree)

    def close(self) -> None:
        """Free its resources; it must have ended."""
        for pipe in self._pipes.values():
            pipe.close()
        for log in self.logs.values():
            log.close()
        self.input.close()
