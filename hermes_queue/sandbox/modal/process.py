"""One command through the SDK: bytes both ways, capped output, a deadline that holds.

The SDK cannot end a command: its own time limit is only a backstop. A caller that stops waiting
kills the tree with a second command inside the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import TIMEOUT_EXIT_CODE, ExecutionResult
from hermes_queue.sandbox.commands.deadline import KillAttempt, kill_until_ended, ran_out_of_time
from hermes_queue.sandbox.commands.marked import MarkedStream
from hermes_queue.sandbox.modal.failures import explained, translated

START_S = 60.0
"""For the start of the command; the SDK repeats the request for as long."""
BACKSTOP_S = 15.0
"""Margin of the limits inside the sandbox and at the service over the command's own limit."""
STDIN_CHUNK_BYTES = 1 << 20
QUIET_S = 2.0
"""After a command that cannot mark the end of its output, reading stops when nothing has arrived
for this long. A background process may hold the streams open."""
DRAIN_S = 30.0
"""Maximum. If output is still missing then, it is marked as cut."""
EXPIRED_CODES = (-1, 137, 124)
"""The SDK's own clock, the service's kill, and `timeout` inside, after the time limit."""


class Output(MarkedStream):
    """One stream, read as it arrives."""

    def __init__(self, stream: Any, cap: int, end: bytes) -> None:
        super().__init__(cap, end)
        self.complete = asyncio.Event()
        """Set when no more of the command's output will come."""
        self.task = asyncio.create_task(self._read(stream))
        self.task.add_done_callback(lambda _: self.complete.set())

    async def _read(self, stream: Any) -> None:
        async for chunk in stream:
            self.feed(chunk)
            if self.is_complete:
                self.complete.set()
        self.end()


async def run_process(
    sandbox: Any,
    argv: Sequence[str],
    *,
    timeout_s: float,
    kill: KillAttempt | None = None,
    stdin: bytes = b"",
    max_output_bytes: int = 1 << 20,
    whole: bool = False,
    end: bytes = b"",
) -> ExecutionResult:
    """Run `argv` to its end, or until `timeout_s` is over.

    Args:
        sandbox: a `modal.Sandbox`.
        argv: at most 64 KiB in total, the service's limit.
        timeout_s: wall-clock seconds.
        kill: called when time is over or the caller is cancelled; None = left to the limit inside.
        stdin: written completely, then closed; empty = nothing is sent.
        max_output_bytes: per stream.
        whole: wait for the streams' ends: the command leaves no process behind, and partial output
            would pass for all of it.
        end: a mark that the command's wrapper writes to both streams after the command's end; it
            and later output, from background processes, is dropped. Empty = no mark.

    Raises:
        SlotLost: the sandbox has ended.
        SandboxError: it does not answer, the command could not be killed, or `whole` output did
            not arrive.
    """
    began = time.monotonic()
    process = await start_process(sandbox, argv, math.ceil(timeout_s + 2 * BACKSTOP_S))
    streams = (process.stdout, process.stderr)
    outputs = [Output(stream, max_output_bytes, end) for stream in streams]
    waiting = asyncio.create_task(process.wait.aio())
    feeding = [asyncio.create_task(_feed(process.stdin, stdin))] if stdin else []
    try:
        ending = None if kill is None else partial(kill_until_ended, waiting, kill)
        timed_out = await ran_out_of_time(waiting, timeout_s, ending, who="sandbox")
        with explained("running a command", gone=True):
            code = waiting.result()
        # A killed wrapper writes no mark.
        marked = bool(end) and not timed_out and code not in EXPIRED_CODES
        complete = await _drain(outputs, DRAIN_S if whole or marked else QUIET_S)
    finally:
        await end_tasks(waiting, *feeding, *(output.task for output in outputs))
    _check_streams(outputs)
    if whole and not complete and not timed_out:
        raise SandboxError("a command's output did not arrive completely")
    seconds = time.monotonic() - began
    timed_out = timed_out or (code in EXPIRED_CODES and seconds >= timeout_s)
    return ExecutionResult(
        exit_code=TIMEOUT_EXIT_CODE if timed_out else code,
        stdout=outputs[0].kept.content(),
        stderr=outputs[1].kept.content(),
        duration_s=seconds,
        timed_out=timed_out,
        truncated=any(output.kept.truncated for output in outputs),
    )


async def start_process(sandbox: Any, argv: Sequence[str], limit_s: int) -> Any:
    """Start `argv` in a `modal.Sandbox`, for `limit_s` seconds at most. Raises SandboxError."""
    with explained("starting a command", gone=True):
        async with asyncio.timeout(START_S):
            return await sandbox.exec.aio(*argv, timeout=limit_s, text=False)


async def _feed(writer: Any, data: bytes) -> None:
    """Write all of it. A command may end, or close its input, without reading it."""
    try:
        for start in range(0, len(data), STDIN_CHUNK_BYTES):
            writer.write(data[start : start + STDIN_CHUNK_BYTES])
            await writer.drain.aio()
        writer.write_eof()
        await writer.drain.aio()
    except Exception as error:  # noqa: BLE001 - waiting for the command reports it
        del error


async def _drain(outputs: Sequence[Output], quiet_s: float) -> bool:
    """Wait for the rest of the output; a background process may hold the streams open.

    Returns whether both streams have ended. Else nothing has arrived for `quiet_s`, or too much,
    and open streams are marked as cut.
    """
    ended = time.monotonic()
    while open_ := [output for output in outputs if not output.complete.is_set()]:
        quiet_at = max(output.last for output in open_) + quiet_s
        left_s = min(max(quiet_at, ended + quiet_s), ended + DRAIN_S) - time.monotonic()
        if left_s <= 0:
            for output in open_:
                output.kept.is_cut = True
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await asyncio.gather(*(output.complete.wait() for output in open_))
    return True


def _check_streams(outputs: Sequence[Output]) -> None:
    """Raise if output was lost: it must not look like a command that printed nothing."""
    for output in outputs:
        if output.task.done() and not output.task.cancelled() and (e := output.task.exception()):
            if isinstance(e, Exception) and type(e).__name__ != "ExecTimeoutError":
                raise translated(e, "reading a command's output", gone=True) from e
