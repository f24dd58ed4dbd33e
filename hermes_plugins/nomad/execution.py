"""One running program in an allocation, through the exec WebSocket (api-docs/client).

Frames are JSON objects. We send `{"stdin": {"data": BASE64}}`, `{"stdin": {"close": true}}` and
empty ones as signs of life; the agent sends `stdout`, `stderr` and at last `{"exited": true,
"result": {"exit_code": N}}`, and empty ones. Then, or instead, it closes, with its reason.

The agent takes neither variables nor a user, and the command is part of the address. So what runs
is always enter.sh, which reads all that from its standard input, ahead of the program's own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hermes_plugins.images.containers.host import STDERR, STDOUT
from hermes_plugins.images.containers.scripts import BASH
from hermes_plugins.nomad.client import GONE
from hermes_plugins.nomad.job import TASK
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.commands.shell import script

if TYPE_CHECKING:
    import aiohttp

CHUNK_BYTES = 48 << 10
HEARTBEAT_S = 10.0
logger = logging.getLogger(__name__)

STREAMS = {"stdout": STDOUT, "stderr": STDERR}
MAX_REASON_CHARS = 300
MAX_CODE = 255
"""Other exit codes are none of a program's."""


def query(*, task: str = TASK) -> dict[str, str]:
    """Parameters of the WebSocket."""
    command = [*BASH, script(__package__, "enter.sh"), "enter"]
    return {"task": task, "tty": "false", "command": json.dumps(command)}


def entry(argv: Sequence[str], *, user: str, env: Mapping[str, str]) -> bytes:
    """What enter.sh reads before the program's own input."""
    variables = [f"{name}={value}" for name, value in env.items()]
    words = [user, str(len(variables)), *variables, str(len(argv)), *argv]
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


class NomadExec:
    """See `ExecStream`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._has_eof = False
        self._code: int | None = None
        self._found: deque[tuple[int, bytes]] = deque()
        """Output that has arrived and was not read."""
        self._has_ended = False
        self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        with contextlib.suppress(Exception):  # the reader reports what matters
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await self._socket.send_str("{}")

    def end(self) -> None:
        """Stop the signs of life."""
        self._beating.cancel()

    async def read(self) -> tuple[int, bytes] | None:
        """See `ExecStream`."""
        import aiohttp

        while not (self._found or self._has_ended):
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                self._frame(message.data)
            elif message.type is not aiohttp.WSMsgType.BINARY:
                self._closed(message)
        return self._found.popleft() if self._found else None

    def _frame(self, text: str) -> None:
        """Take a frame: output, and perhaps the end. Raises SandboxError: it is malformed."""
        try:
            frame = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SandboxError(f"Nomad sent a frame that is no JSON: {text[:100]!r}") from error
        if not isinstance(frame, dict):
            raise SandboxError(f"Nomad sent a frame that is no object: {text[:100]!r}")
        for name, stream in STREAMS.items():
            if (part := frame.get(name)) and (data := _data(part, text)):
                self._found.append((stream, data))
        if frame.get("exited"):
            result = frame.get("result")
            # A code of 0 is left out of the result.
            code = result.get("exit_code", 0) if isinstance(result, dict) else None
            self._code = code if type(code) is int and 0 <= code <= MAX_CODE else None
            self._has_ended = True

    def _closed(self, message: aiohttp.WSMessage) -> None:
        """Take note of the end of the connection.

        Without an exit code the caller asks whether the container lives. Raises SandboxError if the
        reason says more.
        """
        import aiohttp

        self._has_ended = True
        reason = str(message.extra or "")[:MAX_REASON_CHARS]
        if isinstance(message.data, aiohttp.WebSocketError):
            raise SandboxError(f"Nomad sent what is no frame: {message.data}")
        text = reason.lower()
        if "no such file" in text or "executable file" in text:
            raise SandboxRejected(f"a command could not be started: {reason}")
        if GONE.search(text):
            raise SlotLost(f"a command has ended with its allocation: {reason}")
        if reason:
            logger.warning("Nomad ended a command: %s", reason, extra={"action": "command_lost"})

    async def _send(self, frame: Mapping[str, Any]) -> None:
        try:
            await self._socket.send_str(json.dumps(frame))
        except (OSError, RuntimeError) as error:  # aiohttp's own are among them
            raise SandboxError(f"the connection to a command was lost: {error}") from error

    async def write(self, data: bytes) -> None:
        """See `ExecStream`."""
        if self._has_eof:
            raise SandboxError("a command's input has ended")
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = base64.b64encode(data[start : start + CHUNK_BYTES]).decode("ascii")
            await self._send({"stdin": {"data": chunk}})

    async def write_eof(self) -> None:
        """See `ExecStream`."""
        if not self._has_eof:
            self._has_eof = True
            with contextlib.suppress(SandboxError):  # the command may have ended
                await self._send({"stdin": {"close": True}})

    async def exit_code(self) -> int | None:
        """See `ExecStream`."""
        return self._code


def _data(part: Any, text: str) -> bytes:
    data = part.get("data") if isinstance(part, dict) else ""
    try:
        return base64.b64decode(data or "", validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise SandboxError(f"Nomad sent output that is no base64: {text[:100]!r}") from error
