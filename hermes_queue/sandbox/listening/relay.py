"""The worker's end of one run of `relay_process`: connections over one stream each way.

What comes from the sandbox is hostile: frames, numbers of connections and credits are checked, and
a violation ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Protocol

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.listening import relay_process
from hermes_queue.sandbox.listening.relay_process import (
    BEAT,
    BEAT_S,
    CLOSED,
    COUNT,
    CREDIT,
    DATA,
    END,
    GREETING,
    HELLO,
    MAX_CONNECTIONS,
    OPEN,
    STOP,
    Frames,
    frame,
)
from hermes_queue.sandbox.listening.transport import RelayedTransport

STOPPED = "the relay in the sandbox was stopped"
START_S = 60.0
SILENT_S = 30.0
"""After so long without a frame the stream is lost. The SDKs of providers repair shorter gaps."""
STOP_S = 10.0
BATCH_BYTES = 512 << 10
"""Written to the stream at once."""
FRAMES_AT_ONCE = 256
"""Received frames after which other tasks have their turn."""


class RelayWire(Protocol):
    """The running program in a sandbox."""

    def read(self) -> AsyncGenerator[bytes, None]:
        """Its output, until it ends. Raises SandboxError."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input; waits until that has been sent. Raises SandboxError."""

    async def kill(self) -> None:
        """End it; on return it has ended. Raises SandboxError."""

    async def close(self) -> None:
        """Free what this process has of it. Never raises."""

    async def complaint(self) -> str:
        """The end of its standard error, once it has ended."""
        ...


def program() -> str:
    """The program's text: to be run as `python3 -I -S -c TEXT UID PORT`, see its `main`."""
    return Path(relay_process.__file__).read_text(encoding="utf-8")


class Relay:
    """One run of the program."""

    def __init__(self, wire: RelayWire, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._wire = wire
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, RelayedTransport] = {}
        self._last = 0
        """Highest number of a connection so far."""
        self._ready: dict[RelayedTransport, None] = {}
        """Connections with frames to send, in the order of their turns."""
        self._others = bytearray()
        """Frames without a connection."""
        self._work = asyncio.Event()
        self._heard_at = self._sent_at = self._loop.time()
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self.port = 0
        self.knows_owners = False
        """Whether it refuses other users than the slot's."""
        self._is_dead = False
        """Whether the program has closed its output, which it does when it ends."""
        self.ended: asyncio.Future[SandboxError] = self._loop.create_future()
        """Done, with the reason, once no connection can be served."""
        self._running = asyncio.create_task(self._run())

    async def begun(self) -> None:
        """Wait until it listens. Raises SandboxError: it does not."""
        waiting: list[asyncio.Future[None] | asyncio.Future[SandboxError]]
        waiting = [self._greeted, self.ended]
        await asyncio.wait(waiting, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if self.ended.done():
            raise self.ended.result()
        if not self._greeted.done():
            raise SandboxError(f"the relay in the sandbox did not start within {START_S:.0f} s")

    async def stop(self) -> None:
        """End the program, which hears us unless the stream is lost. Raises SandboxError."""
        if not self.ended.done():
            self._others += frame(0, STOP)
            self._work.set()
            await asyncio.wait([self.ended], timeout=STOP_S)
        await self.kill()

    async def kill(self) -> None:
        """End the program. Raises SandboxError: it may be running."""
        await self.abandon()
        if not self._is_dead:
            await self._wire.kill()

    async def abandon(self) -> None:
        """End only what this process has of it. Idempotent, never raises."""
        await end_tasks(self._running)
        if not self.ended.done():  # cancelled before it began
            self.ended.set_result(SandboxError(STOPPED))
        await self._wire.close()

    # --- inside -----------------------------------------------------------------------

    async def _run(self) -> None:
        tasks = [
            asyncio.create_task(each) for each in (self._receive(), self._send(), self._beat())
        ]
        error = SandboxError(STOPPED)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = _failure(next(iter(done)), await self._wire.complaint())
        finally:
            self.ended.set_result(error)
            lost = ConnectionResetError("the connection to the sandbox was lost")
            for connection in self._connections.values():
                connection.lost(lost)
            await end_tasks(*tasks)

    async def _receive(self) -> None:
        frames, count = Frames(), 0
        async with contextlib.aclosing(self._wire.read()) as chunks:
            async for chunk in chunks:
                self._heard_at = self._loop.time()
                for number, kind, payload in frames.feed(chunk):
                    self._take(number, kind, payload)
                    count += 1
                    if count % FRAMES_AT_ONCE == 0:
                        await asyncio.sleep(0)
        self._is_dead = True

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        """Act on a frame. Raises ValueError or struct.error: it is not allowed."""
        if kind == HELLO and not self._greeted.done():
            self.port, self.knows_owners = GREETING.unpack(payload)
            self._greeted.set_result(None)
        elif not self._greeted.done():
            raise ValueError("no greeting")
        elif kind == OPEN:
            self._open(number)
        elif kind != BEAT:
            self._pass_on(number, kind, payload)

    def _open(self, number: int) -> None:
        if number <= self._last or len(self._connections) >= MAX_CONNECTIONS:
            raise ValueError(f"connection {number} of {len(self._connections)}")
        self._last = number
        connection = self._connections[number] = RelayedTransport(number, self._wake)
        try:
            protocol = self._factory()
        except Exception as error:  # noqa: BLE001 - as asyncio's own servers do
            message = {"message": "no protocol for a connection", "exception": error}
            self._loop.call_exception_handler(message)
            connection.abort()
            return
        connection.open(protocol)

    def _pass_on(self, number: int, kind: int, payload: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            raise ValueError(f"a frame for connection {number}")
        if kind == DATA:
            connection.received(payload)
        elif kind == CREDIT:
            connection.credited(*COUNT.unpack(payload))
        elif kind == END:
            connection.ended()
        elif kind == CLOSED:
            del self._connections[number]
            self._ready.pop(connection, None)
            reset = payload != b"\0"
            connection.lost(ConnectionResetError("the program closed it") if reset else None)
        else:
            raise ValueError(f"a frame of kind {kind}")

    def _wake(self, connection: RelayedTransport) -> None:
        if connection.number in self._connections:
            self._ready[connection] = None
            self._work.set()

    async def _send(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while batch := self._batch():
                self._sent_at = self._loop.time()
                await self._wire.write(batch)

    def _batch(self) -> bytes:
        """What can be sent, connections in turn."""
        batch, self._others = self._others, bytearray()
        while self._ready and len(batch) < BATCH_BYTES:
            connection = next(iter(self._ready))
            del self._ready[connection]
            if found := connection.frames():
                batch += found
                self._ready[connection] = None
        return bytes(batch)

    async def _beat(self) -> None:
        while True:
            slept_at = self._loop.time()
            await asyncio.sleep(BEAT_S)
            now = self._loop.time()
            if now - slept_at > 2 * BEAT_S:  # we were held up, and have not read since
                self._heard_at = now
            if now - self._heard_at > SILENT_S:
                raise SandboxError(f"the relay in the sandbox was silent for {SILENT_S:.0f} s")
            if now - self._sent_at >= BEAT_S / 2 and not self._others:
                self._others += frame(0, BEAT)
                self._work.set()


def _failure(task: asyncio.Task[None], complaint: str) -> SandboxError:
    """The reason for which a task of a run has ended."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, SandboxError):
        return error
    what = f"sent what it must not ({error})" if error else "has ended"
    return SandboxError(f"the relay in the sandbox {what}{': ' if complaint else ''}{complaint}")
