"""Keeps the conversation within the model's context, if the job allows rewriting.

The transcript itself never changes. A view of it is sent, and each rewrite of the view is an
event that names messages by their index in the transcript. After a rewrite the next prompt does
not extend the previous one, so the token merge begins a new sequence.

Token counts are those that the server reported. Only the difference since its last report is
estimated, from the tokens per byte in that report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_queue.agent.parameters import AgentParams, read_params
from hermes_queue.models import Message, Usage
from hermes_queue.tools.toolbox import cap

THRESHOLD = 0.9
"""Share of the context in use above which the view is rewritten."""
TARGET = 0.6
"""Share in use after a rewrite, low: each one loses the server's prefix cache."""
KEPT_BYTES = 1024
"""Bytes of a truncated tool output, head and tail together."""

_MARGIN_TOKENS = 16
_ESTIMATE_MARGIN = 0.1
"""Extra free space, as a share of the estimated tokens."""


class ContextControl:
    """The view of one trajectory's conversation."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """Read the `AgentParams` of a job. Raises ModelConfigError if one is invalid."""
        given = read_params(AgentParams, params or {})
        self.policy = given.context
        self._context_tokens = given.context_tokens
        self._kept = 0
        self._sizes: list[int] = []
        self._bytes = 0
        """Bytes of the view; without `_tools`, which are counted when they are first needed."""
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._replaced: dict[int, Message] = {}
        self._dropped: set[int] = set()
        self._base_tokens: int | None = None
        self._base_bytes = 0
        self._rate = 0.0

    def begin(self, prompt: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Set the beginning of the conversation; every view contains all of `prompt`."""
        self._kept = len(prompt)
        self._tools = tools

    def view(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, Any] | None]:
        """The view of the whole transcript, and the event of a rewrite if one was due."""
        new = list(map(_size, messages[len(self._sizes) :]))
        self._sizes += new
        self._bytes += sum(new)
        event = None
        used = self._estimate()
        if self._context_tokens and used is not None and self.policy != "error":
            excess = used - TARGET * self._context_tokens
            if used > THRESHOLD * self._context_tokens:
                event = self._rewrite(messages, int(excess / self._rate), "threshold")
        if not self._dropped and not self._replaced:
            return messages, event
        view = [
            self._replaced.get(i, message)
            for i, message in enumerate(messages)
            if i not in self._dropped
        ]
        return view, event

    def refused(self, messages: Sequence[Message]) -> dict[str, Any] | None:
        """Shorten the view after the server refused it; None = it cannot be shortened further."""
        self._count_tools()
        return self._rewrite(messages, int((1 - TARGET) * self._bytes), "refused")

    def left(self) -> int | None:
        """Tokens available for the completion after the last view; None = unknown."""
        used = self._estimate()
        if self._context_tokens is None or used is None or self._base_tokens is None:
            return None
        estimated = max(0.0, used - self._base_tokens)
        free = self._context_tokens - used - _ESTIMATE_MARGIN * estimated - _MARGIN_TOKENS
        return max(0, int(free))

    def observed(self, usage: Usage, reply: Message) -> None:
        """Record the token counts that the server reported for the last view and its reply."""
        if usage.prompt_tokens <= 0:
            return
        self._count_tools()
        sent_bytes = self._bytes
        # A token of these models' tokenizers is never less than a byte.
        self._rate = min(1.0, usage.prompt_tokens / max(1, sent_bytes))
        self._base_tokens = usage.prompt_tokens + usage.completion_tokens
        self._base_bytes = sent_bytes + _size(reply)

    def _count_tools(self) -> None:
        self._bytes += sum(len(json.dumps(tool)) for tool in self._tools)
        self._tools = ()

    def _estimate(self) -> float | None:
        """Estimated tokens of the view; None before the first report."""
        if self._base_tokens is None:
            return None
        return self._base_tokens + self._rate * (self._bytes - self._base_bytes)

    def _rewrite(
        self, messages: Sequence[Message], excess_bytes: int, reason: str
    ) -> dict[str, Any] | None:
        """Shorten the view by `excess_bytes`, or as far as possible, and return the event."""
        before, tokens = self._bytes, self._estimate()
        touched: list[int] = []
        steps = self._truncate if self.policy == "truncate_tools" else self._drop
        for indexes in steps(messages) if self.policy != "error" else ():
            touched += indexes
            if before - self._bytes >= excess_bytes:
                break
        if not touched:
            return None
        return {
            "event": "context_rewrite",
            "policy": self.policy,
            "reason": reason,
            "messages": touched,
            "bytes": [before, self._bytes],
            "prompt_tokens": None if tokens is None else round(tokens),
        }

    def _truncate(self, messages: Sequence[Message]) -> Iterator[list[int]]:
        """Truncate old tool outputs one by one, sparing the last step."""
        for i in range(self._kept, _last_step(messages)):
            content = messages[i].content or ""
            if messages[i].role == "tool" and i not in self._replaced:
                short = cap(content, KEPT_BYTES)
                if short != content:
                    self._replaced[i] = messages[i].model_copy(update={"content": short})
                    self._bytes -= self._sizes[i] - _size(self._replaced[i])
                    yield [i]

    def _drop(self, messages: Sequence[Message]) -> Iterator[list[int]]:
        """Drop old steps one by one: an assistant message and the results of its calls."""
        step: list[int] = []
        for i in range(self._kept, _last_step(messages)):
            if messages[i].role == "assistant" and step:
                yield self._without(step)
                step = []
            if messages[i].role in ("assistant", "tool") and i not in self._dropped:
                step.append(i)
        if step:
            yield self._without(step)

    def _without(self, step: Sequence[int]) -> list[int]:
        self._dropped.update(step)
        self._bytes -= sum(self._sizes[i] for i in step)
        return list(step)


def _last_step(messages: Sequence[Message]) -> int:
    """Index of the last assistant message, at which the last step begins."""
    return max((i for i, m in enumerate(messages) if m.role == "assistant"), default=0)


def _size(message: Message) -> int:
    """Bytes of a message that the chat template shows."""
    parts = [message.content, message.reasoning]
    for call in message.tool_calls:
        parts += [call.function.name, call.function.arguments]
    return sum(len(part.encode(errors="replace")) for part in parts if part)
