"""Programs in sandboxes with images of tasks, for the code that containers share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_plugins.images.containers.host import (
    STDERR,
    STDOUT,
    ContainerState,
    ExecFacts,
    ExecStream,
)
from hermes_plugins.images.containers.process import run_small
from hermes_plugins.images.containers.scripts import BASH
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.commands.deadline import NoAnswer
from hermes_queue.sandbox.commands.shell import script
from hermes_queue.sandbox.modal.failures import explained, translated
from hermes_queue.sandbox.modal.process import start_process

ARGUMENT_BYTES = 40 << 10
"""Our share of the service's 64 KiB per command, beside our scripts."""
EMPTY_S = 10.0
"""For killing all processes."""
QUEUED = 16
"""Chunks of output that wait for the reader."""


@dataclass(slots=True)
class RootedSandbox:
    """A `modal.Sandbox`, and how commands enter it."""

    sandbox: Any
    lifetime_s: int
    names: str
    """Variables of the image and the task, each between spaces."""
    memory_kib: int
    """Most that a process may write to; 0 = unlimited."""
    touched: float = field(default_factory=time.monotonic)


class SandboxExec:
    """See `ExecStream`."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._chunks: asyncio.Queue[tuple[int, bytes] | SandboxError | None] = asyncio.Queue(QUEUED)
        streams = {STDOUT: process.stdout, STDERR: process.stderr}
        self._readers = [
            asyncio.create_task(self._read(number, stream)) for number, stream in streams.items()
        ]
        self._open = len(self._readers)

    async def _read(self, number: int, stream: Any) -> None:
        try:
            async for chunk in stream:
                await self._chunks.put((number, chunk))
        except Exception as error:  # noqa: BLE001 - the SDK may raise anything
            # A command that ends at its limit tells so by its exit code.
            if type(error).__name__ != "ExecTimeoutError":
                what = "reading a command's output"
                await self._chunks.put(translated(error, what, gone=True))
        await self._chunks.put(None)

    async def read(self) -> tuple[int, bytes] | None:
        """See `ExecStream`."""
        while self._open:
            found = await self._chunks.get()
            if isinstance(found, SandboxError):
                raise found
            if found is not None:
                return found
            self._open -= 1
        return None

    async def write(self, data: bytes) -> None:
        """See `ExecStream`."""
        with explained("writing to a command", gone=True):
            self._process.stdin.write(data)
            await self._process.stdin.drain.aio()

    async def write_eof(self) -> None:
        """See `ExecStream`."""
        with contextlib.suppress(Exception):  # the command, or its sandbox, has ended
            self._process.stdin.write_eof()
            await self._process.stdin.drain.aio()

    async def exit_code(self) -> int | None:
        """See `ExecStream`."""
        with explained("running a command", gone=True):
            return int(await self._process.wait.aio())

    async def close(self) -> None:
        """Stop reading."""
        await end_tasks(*self._readers)


class RootedHost:
    """See `ExecHost`. Containers are sandboxes, by their ids."""

    facts = ExecFacts("Modal", argument_bytes=ARGUMENT_BYTES, arguments_bytes=ARGUMENT_BYTES)

    def __init__(self) -> None:
        self.sandboxes: dict[str, RootedSandbox] = {}

    def _of(self, container: str) -> RootedSandbox:
        if (found := self.sandboxes.get(container)) is None:
            raise SlotLost(f"sandbox {container} has ended")
        return found

    @contextlib.asynccontextmanager
    async def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        user: str,
        env: Mapping[str, str],
        stdin: bool = False,
    ) -> AsyncIterator[ExecStream]:
        """See `ExecHost`; of `env`, only what marks a command."""
        found = self._of(container)
        found.touched = time.monotonic()
        marks = [env.get("HQ_SEAL", ""), env.get("HQ_WRAPPER", "")]
        enter = (*BASH, script(__package__, "enter.sh"), "enter")
        words = [*enter, user or "0", found.names, str(found.memory_kib), *marks, *argv]
        process = await start_process(found.sandbox, words, found.lifetime_s)
        stream = SandboxExec(process)
        try:
            yield stream
        finally:
            found.touched = time.monotonic()
            await stream.close()

    async def state(self, container: str) -> ContainerState:
        """See `ExecHost`. What the service says about a sandbox comes late: so a program tells."""
        process = await start_process(self._of(container).sandbox, ["/bin/true"], 60)
        with explained("looking at a sandbox", gone=True):
            await process.wait.aio()
        return ContainerState(running=True)

    async def trap_in(self, container: str) -> str:
        """See `ExecHost`. Programs are started without a look at its files."""
        return ""

    async def restart(self, container: str) -> None:
        """See `ExecHost`: kills everything, which is all that commands need.

        By a program of the slot, as Modal has none: whether it did is seen by what goes on.
        """
        with contextlib.suppress(NoAnswer):
            await run_small(self, container, (*BASH, "kill -9 -1"), timeout_s=EMPTY_S)
