"""What a job allows its agent: turns, tokens, money and time; for loops and programs alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Limits, StopReason, Usage

STUCK_TURNS = 8
"""Identical turns in a row that count as stuck. Polling (`cat log` until it changes) is fine."""

Cost = Callable[[Usage], float | None]
"""The price of a usage in US dollars; None = unknown."""


class HasUsage(Protocol):
    """Counts the tokens of an attempt."""

    @property
    def usage(self) -> Usage:
        """Tokens of all its model calls so far."""
        ...


class Uncounted:
    """Time that counts towards no limit: waits of calls, of which several may be open at once."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def add(self, began: float, ended: float) -> float:
        """Count a wait; returns the seconds of it that no earlier one has covered.

        No wait may end before one that was counted earlier.
        """
        new_s = ended - began
        while self._spans and self._spans[-1][1] >= began:
            start, end = self._spans.pop()
            new_s -= end - max(start, began)
            began = min(began, start)
        self._spans.append((began, ended))
        return max(0.0, new_s)


@dataclass(slots=True)
class AttemptBudget:
    """The limits of one attempt. What was used is counted elsewhere and passed in."""

    limits: Limits
    sampling: Mapping[str, Any]
    """The job's; its cap of tokens is lowered to what is left."""
    deadline: float
    """On the `time.monotonic()` clock; moved by waits that are not the agent's time."""
    cost_usd: Cost | None = None

    def exhausted(self, turns: int, used: HasUsage) -> StopReason | None:
        """The limit that allows no further turn after `turns`; None if there is none.

        Raises ModelConfigError if the cost is limited, but unknown.
        """
        if turns >= self.limits.max_turns:
            return "max_turns"
        if self.tokens_left(used) == 0:
            return "max_tokens"
        if self._cost_spent(used):
            return "max_cost"
        if time.monotonic() >= self.deadline:
            return "time_limit"
        return None

    def _cost_spent(self, used: HasUsage) -> bool:
        limit = self.limits.max_cost_usd
        if limit is None:
            return False
        cost = self.cost_usd(used.usage) if self.cost_usd else None
        if cost is None:
            raise ModelConfigError(
                "limits.max_cost_usd is set, but the model has no known price: add it to the table "
                "that HERMES_QUEUE_MODEL_PRICES names"
            )
        return cost >= limit

    def tokens_left(self, used: HasUsage) -> int | None:
        """Completion tokens that may still be sampled; None = not limited."""
        if self.limits.max_tokens is None:
            return None
        return max(0, self.limits.max_tokens - used.usage.completion_tokens)

    def reply_cap(self, tokens_left: int | None) -> int | None:
        """The lower one of the job's own cap of a reply and `tokens_left`; None = neither is set.

        A cap of 0 counts as none.
        """
        caps = [
            n for n in (tokens_left, self.sampling.get(self._cap_name) or None) if n is not None
        ]
        return min(caps, default=None)

    def capped(self, *caps: int | None) -> Mapping[str, Any]:
        """The job's sampling with a reply of at most the lowest one of `caps`; None = no cap."""
        given = [cap for cap in caps if cap is not None]
        return {**self.sampling, self._cap_name: min(given)} if given else self.sampling

    @property
    def _cap_name(self) -> str:
        name = "max_completion_tokens"
        return name if name in self.sampling else "max_tokens"
