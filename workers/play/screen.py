"""Messages, calls and the verdict as text for a terminal.

Whatever is shown may come from a slot, a model or a row. A terminal obeys control sequences in its
input: they could rewrite what stands above, set the window's title or answer a question as if it
were typed. They are shown as escapes instead.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click

from envs.base import Verdict
from hermes_queue.agent.loop import AgentResult
from hermes_queue.errors import TrajectoryFailure
from hermes_queue.models import Limits, Message, ToolCall, TrajectoryJob, Turn
from hermes_queue.tools.base import Tool
from hermes_queue.tools.toolbox import cap
from workers.draft import Draft
from workers.play.entry import usage

_DANGEROUS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or turns text
    "\ud800-\udfff\U000e0000-\U000e007f]"  # half a character; tags
)
REPORT_LINES = 60
"""Lines of a verdict's report that are shown; the record has all of it."""
_PROMPT_BYTES = 1 << 16
_EVENT_CHARS = 300


def harmless(text: str) -> str:
    """`text` without anything that a terminal obeys, except line breaks and tabs."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _DANGEROUS.sub(lambda found: ascii(found[0])[1:-1], lines)


class Display:
    """Writes to the terminal, or plain text to a pipe. For use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, text: str, **style: Any) -> None:
        """One or more lines; `style` as for `click.style`."""
        with self._lock:
            click.echo(click.style(harmless(text), **style) if style else harmless(text))

    def note(self, text: str) -> None:
        """A remark of the command itself."""
        self.say(f"-- {text}", fg="cyan")

    def task(self, messages: Sequence[Message]) -> None:
        """The conversation from which the agent starts."""
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

    def assistant(self, message: Message, observation_bytes: int) -> None:
        """A message of the agent with its reasoning and calls."""
        if message.reasoning:
            self.say(cap(message.reasoning, observation_bytes), dim=True)
        if message.content:
            self.say(cap(message.content, observation_bytes))
        for call in message.tool_calls:
            self.say(_shown(call, observation_bytes), fg="yellow")

    def verdict(self, verdict: Verdict, stop_reason: str | None) -> None:
        """The score with its report."""
        solved = verdict.score >= 1.0
        head = f"{'SOLVED' if solved else 'NOT SOLVED'}: score {verdict.score:g}"
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
    model = f" {job.agent.model}" if job.agent.model else ""
    return (
        f"{job.env}, {job.instance_id}: agent {job.agent.kind}{model}, {backend} slot, "
        f"profile {job.profile}"
    )


class LiveTranscript:
    """Shows what an agent's result gains: its watcher, see `AgentResult.watch`."""

    def __init__(self, screen: Display, draft: Draft, *, typed: bool) -> None:
        """`typed`: the agent's messages are on the screen already, since a person types them."""
        self._screen = screen
        self._draft = draft
        self._typed = typed
        self._messages = self._turns = self._events = 0

    def __call__(self, result: AgentResult) -> None:
        """Show what is new."""
        limit = self._draft.job.limits.observation_bytes
        new, self._messages = result.messages[self._messages :], len(result.messages)
        events, self._events = result.events[self._events :], len(result.events)
        for event in events:
            self._event(event)
        for message in new:
            if message.role == "tool":
                self._screen.say(message.content or "")
            elif message.role != "assistant":
                self._screen.task([message])
            else:
                self._turn(result)
                if not self._typed:
                    self._screen.assistant(message, limit)

    def _turn(self, result: AgentResult) -> None:
        number, self._turns = self._turns, self._turns + 1
        if self._typed or number >= len(result.turns):
            return
        facts = _facts(result.turns[number])
        cost = self._draft.cost_usd(result.usage)
        spent = f", ${cost:.4f} so far" if cost else ""
        self._screen.note(f"turn {number + 1}{facts}{spent}")

    def _event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") != "stop":
            self._screen.note(f"event {json.dumps(event, default=str)[:_EVENT_CHARS]}")


def _facts(turn: Turn) -> str:
    usage = turn.usage
    facts = []
    if usage.prompt_tokens or usage.completion_tokens:
        facts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    if turn.latency_s:
        facts.append(f"{turn.latency_s:.1f} s")
    if turn.finish_reason == "length":
        facts.append("cut off")
    return f": {', '.join(facts)}" if facts else ""


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
    for name, value in report.items():
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
