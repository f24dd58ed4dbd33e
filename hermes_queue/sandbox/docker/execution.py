"""One running program in a container, through aiodocker."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, cast

from hermes_queue.errors import SandboxError
from hermes_queue.images.engine.client import translated

if TYPE_CHECKING:
    from aiodocker.execs import Exec
    from aiodocker.stream import Stream

CODE_TRIES, CODE_PAUSE_S = 40, 0.05
"""The engine learns of a program's end a little after its streams."""


class EngineExec:
    """See `ExecStream`."""

    def __init__(self, execution: Exec, stream: Stream) -> None:
        self._execution = execution
        self._stream = stream
        self._has_eof = False

    async def read(self) -> tuple[int, bytes] | None:
        """See `ExecStream`."""
        with translated("reading a command's output"):
            return cast("tuple[int, bytes] | None", await self._stream.read_out())

    async def write(self, data: bytes) -> None:
        """See `ExecStream`."""
        if self._has_eof:
            raise SandboxError("a command's input has ended")
        with translated("writing to a command"):
            await self._stream.write_in(data)

    async def write_eof(self) -> None:
        """See `ExecStream`."""
        self._has_eof = True
        with contextlib.suppress(Exception):  # the command may have ended, and with it the stream
            response = self._stream._resp
            if response is not None and response.connection is not None:
                transport = response.connection.transport
                if transport is not None and transport.can_write_eof():
                    transport.write_eof()

    async def exit_code(self) -> int | None:
        """See `ExecStream`."""
        for _ in range(CODE_TRIES):
            try:
                with translated("asking for a command's exit code"):
                    found = await self._execution.inspect()
            except SandboxError:
                return None  # Podman forgets ended programs, a restarted engine all of them
            code = found.get("ExitCode")
            if not found.get("Running") and isinstance(code, int):
                return code & 0xFF
            await asyncio.sleep(CODE_PAUSE_S)
        return None
