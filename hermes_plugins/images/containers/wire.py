"""The relay of a slot's port as a program in its container; see `sandbox.listening`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable

from hermes_plugins.images.containers.host import STDOUT, ExecHost, ExecStream
from hermes_plugins.images.containers.process import START_S
from hermes_plugins.images.containers.scripts import BASH
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.host.execution import HeadTail
from hermes_queue.sandbox.listening import relay

LAUNCH = (
    'python=$(command -v python3) || { echo "the image has no python3" >&2; exit 1; }; '
    'env -i "HQ_COMMAND_ID=$2" ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} '
    '"$python" -I -S -c "$1" "$3" "$4"; exit $?'
)
"""Run by root. Of the image's variables it has only what some builds of Python need. The shell
stays, which it does only if it has a last word: what kills the relay stops it first."""
COMPLAINT_BYTES = 2000
COMPLAINT_S = 2.0
QUEUED = 16
"""Chunks of output that wait for the reader; then the program waits."""

KillInContainer = Callable[[str], Awaitable[object]]
"""Kills the command with this id. Raises SandboxError."""


class ContainerWire:
    """See `relay.RelayWire`."""

    def __init__(
        self,
        stream: ExecStream,
        stack: contextlib.AsyncExitStack,
        kill: Callable[[], Awaitable[object]],
    ) -> None:
        self._stream = stream
        self._stack = stack
        self._kill = kill
        self._errors = HeadTail(COMPLAINT_BYTES)
        self._chunks: asyncio.Queue[bytes | SandboxError | None] = asyncio.Queue(QUEUED)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while found := await self._stream.read():
                if found[0] == STDOUT:
                    await self._chunks.put(found[1])
                else:
                    self._errors.feed(found[1])
        except SandboxError as error:
            await self._chunks.put(error)
        else:
            await self._chunks.put(None)

    async def read(self) -> AsyncGenerator[bytes, None]:
        """See `relay.RelayWire`."""
        while chunk := await self._chunks.get():
            if isinstance(chunk, SandboxError):
                raise chunk
            yield chunk

    async def write(self, data: bytes) -> None:
        """See `relay.RelayWire`."""
        await self._stream.write(data)

    async def kill(self) -> None:
        """See `relay.RelayWire`."""
        await self._stream.write_eof()
        await self._kill()

    async def close(self) -> None:
        """See `relay.RelayWire`."""
        await end_tasks(self._reading)
        await self._stack.aclose()

    async def complaint(self) -> str:
        """See `relay.RelayWire`."""
        await asyncio.wait([self._reading], timeout=COMPLAINT_S)
        return self._errors.content().decode("utf-8", "replace").strip()


async def open_wire(
    host: ExecHost, container: str, *, uid: int, port: int, kill: KillInContainer
) -> ContainerWire:
    """Start the relay in a container. Raises SandboxError.

    `uid` is the only one that may connect, 0 = everybody may; `port` 0 = any.
    """
    command_id = uuid.uuid4().hex
    argv = (*BASH, LAUNCH, "relay", relay.program(), command_id, str(uid), str(port))
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(START_S):
            opening = host.exec(container, argv, user="0", env={}, stdin=True)
            stream = await stack.enter_async_context(opening)
        return ContainerWire(stream, stack.pop_all(), lambda: kill(command_id))
    raise AssertionError  # the block returns or raises
