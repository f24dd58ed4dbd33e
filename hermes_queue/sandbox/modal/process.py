"""One command through the SDK: bytes both ways, capped output, a deadline that holds.

The SDK has no way to end a command: its own time limit is only a backstop, and who is done
waiting kills the tree with a second command inside the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.execution import HeadTail, unbroken
from hermes_queue.sandbox.modal.failures import explained, translated

START_S = 60.0
"""For the sandbox to take the command; the SDK by itself repeats for as long."""
BACKSTOP_S = 15.0
"""How much longer than the command's own limit the ones inside and at the service are."""
STDIN_CHUNK_BYTES = 1 << 20
QUIET_S = 2.0
"""After the command's end: output on its way is waited for until none came for so long."""
DRAIN_S = 30.0
"""At most, when a background process goes on writing: large output needs seconds to arrive, and
what is missing at its end must not pass for what the command wrote."""
KILL_ROUNDS = 10
KILL_PAUSE_S = 0.5
EXPIRED_CODES = (-1, 137, 124)
"""The SDK's own clock, the service's kill, and `timeout` inside, when the time is over."""

Kill = Callable[[], Awaitable[None]]
"""Kills the command's tree; may be called before it has begun and after it has ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    timed_out: bool
    seconds: float


class _Output:
    """One stream, read as it comes."""

    def __init__(self, stream: Any, cap: int) -> None:
        self.kept = HeadTail(cap)
        self.last = time.monotonic()
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async for chunk in stream:
            self.kept.feed(chunk)
            self.last = time.monotonic()


async def run_process(
    sandbox: Any,
    argv: Sequence[str],
    *,
    timeout_s: float,
    kill: Kill | None = None,
    stdin: bytes = b"",
    max_output_bytes: int = 1 << 20,
    whole: bool = False,
) -> Finished:
    """Run `argv` to its end, or until `timeout_s` is over.

    Args:
        sandbox: a `modal.Sandbox`.
        argv: at most 64 KiB in all, which is the service's limit.
        timeout_s: wall-clock seconds.
        kill: called when time is over or the caller is cancelled. Without it the command is
            left to the limit inside the sandbox.
        stdin: written whole, then closed; empty = nothing is sent.
        max_output_bytes: per stream.
        whole: the command leaves no process behind that holds its streams open, and a part of
            its output would be taken for all: wait for the streams' ends.

    Raises:
        SlotLost: the sandbox has ended.
        SandboxError: it does not answer, the command could not be killed, or `whole` output did
            not arrive.
    """
    began = time.monotonic()
    process = await _start(sandbox, argv, math.ceil(timeout_s + 2 * BACKSTOP_S))
    outputs = [_Output(process.stdout, max_output_bytes), _Output(process.stderr, max_output_bytes)]
    waiting = asyncio.ensure_future(process.wait.aio())
    feeding = asyncio.create_task(_feed(process.stdin, stdin)) if stdin else None
    try:
        timed_out = await _wait(waiting, timeout_s, kill)
        with explained("running a command", gone=True):
            code = waiting.result()
        complete = await _drain(outputs, DRAIN_S if whole else QUIET_S)
    finally:
        await _put_away(waiting, feeding, *(output.task for output in outputs))
    _check_streams(outputs)
    if whole and not complete and not timed_out:
        raise SandboxError("a command's output did not arrive in whole")
    seconds = time.monotonic() - began
    return Finished(
        exit_code=code,
        stdout=outputs[0].kept.content(),
        stderr=outputs[1].kept.content(),
        truncated=any(output.kept.truncated for output in outputs),
        timed_out=timed_out or (code in EXPIRED_CODES and seconds >= timeout_s),
        seconds=seconds,
    )


async def _start(sandbox: Any, argv: Sequence[str], limit_s: int) -> Any:
    with explained("starting a command", gone=True):
        async with asyncio.timeout(START_S):
            return await sandbox.exec.aio(*argv, timeout=limit_s, text=False)


async def _wait(waiting: asyncio.Future[int], timeout_s: float, kill: Kill | None) -> bool:
    """Whether time ran out. Returns once `waiting` is done."""
    try:
        await asyncio.wait({waiting}, timeout=timeout_s)
    except asyncio.CancelledError:
        if kill is not None:
            with contextlib.suppress(SandboxError):  # the slot's reset is the next chance
                await unbroken(_end(waiting, kill))
        raise
    if waiting.done():
        return False
    if kill is None:
        raise SandboxError(f"the sandbox did not answer within {timeout_s:g} s")
    await unbroken(_end(waiting, kill))
    return True


async def _end(waiting: asyncio.Future[int], kill: Kill) -> None:
    """Kill until the command has ended: the first try may come before it has begun."""
    for _ in range(KILL_ROUNDS):
        await kill()
        await asyncio.wait({waiting}, timeout=KILL_PAUSE_S)
        if waiting.done():
            return
    raise SandboxError("a command that ran out of time could not be killed")


async def _feed(writer: Any, data: bytes) -> None:
    """Write all of it. A command may end, or close its input, without reading it."""
    try:
        for start in range(0, len(data), STDIN_CHUNK_BYTES):
            writer.write(data[start : start + STDIN_CHUNK_BYTES])
            await writer.drain.aio()
        writer.write_eof()
        await writer.drain.aio()
    except Exception as error:  # noqa: BLE001 - whatever it is, waiting for the command tells
        del error


async def _drain(outputs: Sequence[_Output], quiet_s: float) -> bool:
    """Let what the command wrote arrive; a background process may hold the streams open.

    Returns whether both have ended; else nothing has come for `quiet_s`, or too much.
    """
    ended = time.monotonic()
    while True:
        open_ = [output for output in outputs if not output.task.done()]
        now = time.monotonic()
        quiet_at = max((output.last for output in open_), default=0.0) + quiet_s
        give_up = min(max(quiet_at, ended + quiet_s), ended + DRAIN_S)
        if not open_ or now >= give_up:
            return not open_
        await asyncio.wait([output.task for output in open_], timeout=give_up - now)


def _check_streams(outputs: Sequence[_Output]) -> None:
    """Output that was lost on the way must not look like a command that printed nothing."""
    for output in outputs:
        if output.task.done() and not output.task.cancelled() and (e := output.task.exception()):
            if isinstance(e, Exception) and type(e).__name__ != "ExecTimeoutError":
                raise translated(e, "reading a command's output", gone=True) from e


async def _put_away(*tasks: asyncio.Future[Any] | None) -> None:
    """Stop what is still running of a command that is over."""
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
