"""What is noted while an attempt runs: when its stages, model calls and tool calls began and ended.

Spans are made of it after the attempt. An attempt that is not traced has no timeline, and whoever
would note something looks for that alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

MOST_CALLS = 2048
"""Calls that one attempt notes; further ones are counted."""


@dataclass(slots=True)
class Noted:
    """One call. Times are those of the monotonic clock."""

    began: float
    ended: float = 0.0
    error: BaseException | None = None
    asked: Any = None
    """Of a tool call, the call; of a model call, the conversation and its length then, if contents
    are exported."""
    model: str = ""
    """Of a model call, the model if it is not the agent's."""
    answer: Any = None
    """Of a model call, its `Reply`; of a tool call, its `ToolOutcome`; None = there was none."""


@dataclass(slots=True)
class StageNoted:
    """One stage, and why it failed."""

    name: str
    began: float
    ended: float
    error: BaseException | None


class Timeline:
    """The notes of one attempt. On one event loop."""

    __slots__ = (
        "began",
        "began_ns",
        "keeps_content",
        "model_calls",
        "not_noted",
        "stages",
        "tool_calls",
    )

    def __init__(self, *, keeps_content: bool = False) -> None:
        self.began = time.monotonic()
        self.began_ns = time.time_ns()
        self.keeps_content = keeps_content
        self.stages: list[StageNoted] = []
        self.model_calls: list[Noted] = []
        self.tool_calls: list[Noted] = []
        self.not_noted = 0

    def at_ns(self, moment: float) -> int:
        """A moment of the monotonic clock in Unix nanoseconds."""
        return self.began_ns + round((moment - self.began) * 1e9)

    def stage(self, name: str, began: float, error: BaseException | None) -> None:
        """Note a stage that has ended now."""
        if len(self.stages) < MOST_CALLS:
            self.stages.append(StageNoted(name, began, time.monotonic(), error))

    def model_call(self, messages: Sequence[Any], model: str = "") -> NotedCall:
        """Note the model call of a `with` block, which sets `answer`."""
        # Its length, too: this may be the transcript itself, which grows.
        asked = (messages, len(messages)) if self.keeps_content else None
        call = self._call(self.model_calls, asked)
        call.noted.model = model
        return call

    def tool_call(self, call: Any) -> NotedCall:
        """Note the tool call of a `with` block, which sets `answer`."""
        return self._call(self.tool_calls, call)

    def _call(self, calls: list[Noted], asked: Any) -> NotedCall:
        noted = Noted(time.monotonic(), asked=asked)
        if len(calls) < MOST_CALLS:
            calls.append(noted)
        else:
            self.not_noted += 1
        return NotedCall(noted)


class NotedCall:
    """A call that is being made."""

    __slots__ = ("noted",)

    def __init__(self, noted: Noted) -> None:
        self.noted = noted

    def answered(self, answer: Any) -> None:
        """Note the answer."""
        self.noted.answer = answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.noted.ended = time.monotonic()
        self.noted.error = error
