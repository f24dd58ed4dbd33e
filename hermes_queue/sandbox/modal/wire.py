"""The relay of a slot's port as a command through the SDK; see `hermes_queue.sandbox.listening`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.listening import relay
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.sandbox.modal.process import Output, start_process

LAUNCH = (
    'python=$(command -v python3) || exit; env -i "HQ_COMMAND_ID=$2" '
    '${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} '
    '"$python" -I -S -c "$1" "$3" "$4"; exit $?'
)
"""Run by the image's root, so that no slot with a uid can signal or trace it. Of the image's
variables, which may be secret, it has only what some builds of Python need. The shell stays,
which it does only if it has a last word: `slot.sh kill` stops what it kills, and the outermost
process of a command must not be stopped."""
COMPLAINT_BYTES = 2000
COMPLAINT_S = 2.0
EOF_S = 5.0

KillCommand = Callable[[str], Awaitable[object]]
"""Kills the command with this id. Raises SandboxError."""


class ExecWire:
    """See `relay.RelayWire`."""

    def __init__(self, process: Any, kill: Callable[[], Awaitable[object]]) -> None:
        self._process = process
        self._kill = kill
        self._errors = Output(process.stderr, COMPLAINT_BYTES, b"")

    async def read(self) -> AsyncGenerator[bytes, None]:
        """See `relay.RelayWire`."""
        with explained("reading from the relay of a slot", gone=True):
            async for chunk in self._process.stdout:
                yield chunk

    async def write(self, data: bytes) -> None:
        """See `relay.RelayWire`."""
        with explained("writing to the relay of a slot", gone=True):
            self._process.stdin.write(data)
            await self._process.stdin.drain.aio()

    async def kill(self) -> None:
        """See `relay.RelayWire`."""
        await _end_input(self._process)
        await self._kill()

    async def close(self) -> None:
        """See `relay.RelayWire`."""
        await end_tasks(self._errors.task)

    async def complaint(self) -> str:
        """See `relay.RelayWire`."""
        await asyncio.wait([self._errors.task], timeout=COMPLAINT_S)
        return self._errors.kept.content().decode("utf-8", "replace").strip()


async def open_wire(
    sandbox: Any, *, uid: int, port: int, limit_s: float, kill: KillCommand
) -> ExecWire:
    """Start the relay in a `modal.Sandbox`, for `limit_s` seconds at most. Raises SandboxError.

    `uid` is the only one that may connect, 0 = everybody may; `port` 0 = any.
    """
    command_id = uuid.uuid4().hex
    words = [relay.program(), command_id, str(uid), str(port)]
    argv = ["/bin/bash", "-c", LAUNCH, "relay", *words]
    starting = asyncio.ensure_future(start_process(sandbox, argv, math.ceil(limit_s)))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await unbroken(_end_late(starting))
        raise
    return ExecWire(process, lambda: kill(command_id))


async def _end_late(starting: asyncio.Future[Any]) -> None:
    """End a relay that nobody waits for any more."""
    with contextlib.suppress(SandboxError):
        await _end_input(await starting)


async def _end_input(process: Any) -> None:
    """Close the input of a relay, at whose end it ends, even if it is only about to begin."""
    with contextlib.suppress(Exception):  # the stream may be lost, and the relay with it
        async with asyncio.timeout(EOF_S):
            process.stdin.write_eof()
            await process.stdin.drain.aio()
