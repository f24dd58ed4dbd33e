"""One command in a container: bytes both ways, capped output, a deadline that holds.

Engines end no program of an `exec`, and do not always know its exit code: the wrapper writes it
after the command's output (see run.sh), and a second program kills the tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hermes_plugins.images.containers.host import KILLED, STDOUT, ExecHost, ExecStream
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.base import TIMEOUT_EXIT_CODE, ExecutionResult
from hermes_queue.sandbox.commands.deadline import (
    KillAttempt,
    NoAnswer,
    kill_until_ended,
    ran_out_of_time,
)
from hermes_queue.sandbox.commands.marked import MarkedStream

START_S = 60.0
"""For the start of a program."""
BACKSTOP_S = 15.0
"""Margin of the limit inside the container over the command's own."""
STDIN_CHUNK_BYTES = 256 << 10
NOT_STARTED = 126, 127
UNKNOWN_USER = re.compile(r"unable to find (user|group)|no matching entries in (passwd|group)")
"""What engines say of a user that the image does not have."""
ENDING_ROUNDS, ENDING_PAUSE_S = 20, 0.1
"""For a container that cannot start programs to be known as ended."""
SMALL_BYTES = 1 << 20
SMALL_S = 60.0


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """A program to run in a container."""

    argv: Sequence[str]
    timeout_s: float
    user: str = "0"
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    max_output_bytes: int = SMALL_BYTES
    mark: bytes = b""
    """Between the output and what the wrapper reports; empty = there is no wrapper."""


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """The end of a command."""

    result: ExecutionResult
    out_of_memory: bool = False
    """Whether the kernel has killed meanwhile for lack of memory in the container."""


class _Run:
    """One command while it runs."""

    def __init__(self, stream: ExecStream, command: ContainerCommand) -> None:
        self._stream = stream
        self._command = command
        cap, mark = command.max_output_bytes, command.mark
        self.out = MarkedStream(cap, mark, has_note=True)
        self.err = MarkedStream(cap, mark)
        self.reading = asyncio.create_task(self._read())
        self.feeding = asyncio.create_task(self._feed())

    async def _read(self) -> bool:
        """Read until both marks have come; returns whether they have."""
        while not (self.out.is_complete and self.err.is_complete):
            if (found := await self._stream.read()) is None:
                self.out.end()
                self.err.end()
                return self.out.is_complete  # a command that is killed may take stderr's mark along
            stream, data = found
            (self.out if stream == STDOUT else self.err).feed(data)
        return True

    async def _feed(self) -> None:
        """Write all of the input. A command may end, or close it, without reading it."""
        data = self._command.stdin
        with contextlib.suppress(SandboxError):  # the reader reports what matters
            for start in range(0, len(data), STDIN_CHUNK_BYTES):
                await self._stream.write(data[start : start + STDIN_CHUNK_BYTES])
        if data:
            await self._stream.write_eof()

    async def wait(self, timeout_s: float, kill: KillAttempt | None) -> bool:
        """Wait for its end; returns whether time ran out."""
        end = None if kill is None else partial(kill_until_ended, self.reading, kill)
        return await ran_out_of_time(self.reading, timeout_s, end, who="container")


async def run_command(
    host: ExecHost, container: str, command: ContainerCommand, kill: KillAttempt | None = None
) -> EndedCommand:
    """Run a command to its end, or until its time is over.

    `kill` is called when time is over or the caller is cancelled; None = left to the limit inside.

    Raises:
        SlotLost: the container has ended.
        SandboxError: the host does not answer, or the command could not be killed.
    """
    began = time.monotonic()
    opening = host.exec(
        container,
        command.argv,
        user=command.user,
        env=command.env,
        stdin=bool(command.stdin),
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(START_S):
                stream = await stack.enter_async_context(opening)
        except TimeoutError as error:
            raise SandboxError(f"a command did not start within {START_S:.0f} s") from error
        run = _Run(stream, command)
        try:
            timed_out = await run.wait(command.timeout_s, kill)
            is_marked = run.reading.result()
            code = None if is_marked and command.mark else await stream.exit_code()
        finally:
            await end_tasks(run.reading, run.feeding)
        if command.mark and not is_marked:
            await _check_alive(host, container)
            _check_user(run, code)
        if code is None and not (is_marked and command.mark):
            if not timed_out:
                raise SandboxError("the connection to a command was lost")
            code = KILLED  # with its wrapper
    seconds = time.monotonic() - began
    code, out_of_memory, cpu_s = _note(run.out.note, code)
    timed_out = timed_out or (code == TIMEOUT_EXIT_CODE and seconds >= command.timeout_s)
    result = ExecutionResult(
        exit_code=TIMEOUT_EXIT_CODE if timed_out else code,
        stdout=run.out.kept.content(),
        stderr=run.err.kept.content(),
        duration_s=seconds,
        timed_out=timed_out,
        truncated=run.out.kept.truncated or run.err.kept.truncated,
        cpu_s=cpu_s,
    )
    return EndedCommand(result, out_of_memory)


def _note(note: bytes, code: int | None) -> tuple[int, bool, float | None]:
    """Exit code, whether memory ran out, and CPU seconds: what the wrapper has reported.

    Root of a slot may have replaced the shell that runs the wrapper: a report that cannot be read
    is the end of a command that was killed with it.
    """
    if code is not None:
        return code, False, None
    try:
        exit_code, kills, cpu_us = note.decode("ascii").split(" ")
        cpu_s = None if cpu_us == "-" else int(cpu_us) / 1e6
        return int(exit_code) & 0xFF, kills == "1", cpu_s
    except ValueError:
        return KILLED, False, None


def _check_user(run: _Run, code: int | None) -> None:
    """Raise SandboxRejected if the host could not start the wrapper for want of its user."""
    text = (run.out.kept.content() + run.err.kept.content()).decode("utf-8", "replace")
    if code in NOT_STARTED and UNKNOWN_USER.search(text):
        raise SandboxRejected(f"a command could not be started: {text.strip()[:300]}")


async def _check_alive(host: ExecHost, container: str) -> None:
    """After a command that was killed with its wrapper: raise SlotLost if that was all that was.

    The end of a container looks the same at first. Where all processes end with the first one, no
    other program can start then.
    """
    state = await host.state(container)  # raises SlotLost: it is gone
    if state.running and await _starts_programs(host, container):
        return
    for _ in range(ENDING_ROUNDS):
        if not state.running:
            memory = ", and it was out of memory" if state.out_of_memory else ""
            raise SlotLost(f"the container has ended{memory}")
        await asyncio.sleep(ENDING_PAUSE_S)
        state = await host.state(container)


async def _starts_programs(host: ExecHost, container: str) -> bool:
    """Whether a container starts a program, whatever root of it has put in its place."""
    try:
        return (await run_small(host, container, ("/bin/true",))).exit_code == 0
    except NoAnswer:
        return True


async def run_small(
    host: ExecHost,
    container: str,
    argv: Sequence[str],
    *,
    user: str = "0",
    timeout_s: float = SMALL_S,
    stdin: bytes = b"",
) -> ExecutionResult:
    """Run a short program of ours without a wrapper. Raises as `run_command`, and NoAnswer."""
    command = ContainerCommand(argv, math.ceil(timeout_s), user=user, stdin=stdin)
    return (await run_command(host, container, command)).result
