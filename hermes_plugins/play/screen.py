"""Messages, calls and the verdict as text for a terminal.

Whatever is shown may come from a slot, a model or a row. A terminal obeys control sequences in its
input: they could rewrite what stands above, set the window's title or answer a question as if it
were typed. They are shown as signs instead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from envs.base import Verdict
from hermes_plugins.play.entry import usage
from hermes_queue.errors import TrajectoryFailure
from hermes_queue.models import Limits, Message, ProgramRun, ToolCall, TrajectoryJob
from hermes_queue.terminal.escapes import visible
from hermes_queue.terminal.output import echo
from hermes_queue.tools.base import Tool
from hermes_queue.tools.toolbox import cap

REPORT_LINES = 60
"""Lines of a verdict's report that are shown; the record has all of it."""
_PROMPT_BYTES = 1 << 16


class Display:
    """Writes to the terminal, or plain text to a pipe. For use from several threads.

    Never raises: a terminal or pipe that is closed must not change how an attempt ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, text: str, **style: Any) -> None:
        """One or more lines; `style` as for `click.style`."""
        shown = visible(text)
        with self._lock, suppress(OSError):
            echo(head=click.style(shown, **style) if style else shown)

    def note(self, text: str) -> None:
        """A remark of the command itself."""
        self.say(f"-- {text}", fg="cyan")

    def task(self, messages: Iterable[Message]) -> None:
        """Messages to the agent, such as those from which it starts."""
        for message in messages:
            self.say(f"[{message.role}]", bold=True)
            self.say(cap(message.content or "", _PROMPT_BYTES))

    def tools(self, tools: Sequence[Tool]) -> None:
        """How to call each tool, and what it does."""
        for tool in tools:
            self.say(f"  {usage(tool)}", bold=True)
            self.say(f"      {tool.description}")

    def limits(self, limits: Limits, turns: int) -> None:
        """What bounds the attempt."""
        parts = [
            f"{turns} of {limits.max_turns} turns used",
            f"{limits.tool_timeout_s:g} s a call",
            f"{limits.agent_timeout_s:g} s for all turns",
            f"{limits.observation_bytes} bytes of a call's output are shown",
        ]
        if limits.max_tokens is not None:
            parts.append(f"{limits.max_tokens} tokens")
        if limits.max_cost_usd is not None:
            parts.append(f"${limits.max_cost_usd:g}")
        self.note("limits: " + ", ".join(parts))

    def observation(self, message: Message, limit_bytes: int) -> None:
        """The answer to a tool call."""
        self.say(cap(message.content or "", limit_bytes))

    def assistant(self, message: Message, observation_bytes: int) -> None:
        """A message of the agent with its reasoning and calls."""
        if message.reasoning:
            self.say(cap(message.reasoning, observation_bytes), dim=True)
        if message.content:
            self.say(cap(message.content, observation_bytes))
        for call in message.tool_calls:
            self.say(_shown(call, observation_bytes), fg="yellow")

    def program(self, run: ProgramRun, limit_bytes: int) -> None:
        """How a program ended, and the end of what it printed."""
        code = "killed" if run.exit_code is None else f"exit code {run.exit_code}"
        self.note(f"program {run.name} {run.version}: {code}, {run.seconds:.1f} s")
        for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
            if text.strip():
                self.say(f"[{name}]\n{cap(text.strip(), limit_bytes)}", dim=True)
        for what, counts in (("refused", run.refused), ("other requests", run.other_requests)):
            if counts:
                self.note(f"{what}: {', '.join(f'{n} x {each}' for each, n in counts.items())}")

    def verdict(self, verdict: Verdict, stop_reason: str | None) -> None:
        """The score with its report."""
        solved = verdict.score is None or verdict.score >= 1.0
        head = f"{'SOLVED' if solved else 'NOT SOLVED'}: score {verdict.score or 0:g}"
        if verdict.score is None:
            head = "ENDED: this env gives no scores"
        self.say(f"{head} ({stop_reason})", bold=True, fg="green" if solved else "red")
        for name, value in verdict.rewards.items():
            self.say(f"  reward {name}: {value:g}")
        lines = _report_lines(verdict.report)
        for line in lines[:REPORT_LINES]:
            self.say(f"  {line}")
        if len(lines) > REPORT_LINES:
            self.note(f"{len(lines) - REPORT_LINES} more lines; --record FILE keeps all of them")

    def failure(self, failure: TrajectoryFailure) -> None:
        """Why there is no score."""
        self.say(
            f"NO VERDICT: {failure.cause} in {failure.stage}: {failure}", bold=True, fg="magenta"
        )


def headline(job: TrajectoryJob, backend: str) -> str:
    """What is played: `gsm8k, gsm8k-1: agent human, local slot, profile default`."""
    program = job.agent.params.get("program")
    name = program.get("name") if isinstance(program, Mapping) else program
    agent = " ".join(str(each) for each in (job.agent.kind, name) if each)
    model = f", model {job.agent.model}" if job.agent.model else ""
    return (
        f"{job.env}, {job.instance_id}: agent {agent}{model}, {backend} slot, profile {job.profile}"
    )


def _shown(call: ToolCall, limit_bytes: int) -> str:
    """A call as a person would enter it."""
    name, arguments = call.function.name, call.function.arguments
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = None
    if name == "terminal" and isinstance(given, dict) and isinstance(given.get("command"), str):
        return cap(f"$ {given['command']}", limit_bytes)
    return cap(f":tool {name} {arguments}", limit_bytes)


def _report_lines(report: Mapping[str, Any], indent: str = "") -> list[str]:
    """A report, an entry a line; its depth is bounded, see `workers.verdicts`."""
    lines: list[str] = []
    # The reason first, and what may be long last: the number of lines is limited.
    entries = sorted(report.items(), key=lambda pair: (pair[0] != "reason", "\n" in str(pair[1])))
    for name, value in entries:
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{name}:", *_report_lines(value, f"{indent}  ")]
        elif isinstance(value, list | tuple) and value:
            lines.append(f"{indent}{name}: {len(value)}")
            lines += [f"{indent}  {_line(each)}" for each in value]
        elif isinstance(value, str) and "\n" in value:
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  {line}" for line in value.splitlines()]
        else:
            lines.append(f"{indent}{name}: {_line(value)}")
    return lines


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
