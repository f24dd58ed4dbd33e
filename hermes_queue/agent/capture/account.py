"""Events and refusals of a program's calls, bounded in number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from hermes_queue.agent.capture.calls import RefusalKind, Refused
from hermes_queue.agent.loop import AgentResult

MAX_EVENTS = 5_000
MAX_OTHER_REQUESTS = 50
"""Distinct requests that are counted one by one."""


class Account:
    """Events go to `result`, in order; counts stay here."""

    def __init__(self, result: AgentResult) -> None:
        self.other_requests: Counter[str] = Counter()
        """Requests that were no model call: method, path and status -> number."""
        self.refused: Counter[str] = Counter()
        """Refused calls by kind."""
        self._result = result
        self._seen: set[bytes] = set()

    def reject(self, method: str, path: str, status: int) -> None:
        """Count a request that was no model call."""
        name = f"{method[:10]} {path[:200]} {status}"
        if name not in self.other_requests and len(self.other_requests) >= MAX_OTHER_REQUESTS:
            name = "others"
        self.other_requests[name] += 1

    def refusal(self, kind: RefusalKind, message: str) -> Refused:
        """Count a refusal, and return it."""
        self.refused[kind] += 1
        return Refused(kind, message[:1000])

    def new(self, events: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Those of a call's events that no earlier call had, as many as the record has room for."""
        found = []
        for event in events:
            text = json.dumps(event, sort_keys=True, default=str)
            name = blake2b(text.encode(errors="replace"), digest_size=16).digest()
            if name not in self._seen and len(self._seen) < MAX_EVENTS:
                self._seen.add(name)
                found.append(event)
        return self.fitting(found)

    def fitting(self, events: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """As many of `events` as the record has room for."""
        return tuple(events[: max(0, MAX_EVENTS - len(self._result.events))])

    def events(self, events: Sequence[Mapping[str, Any]], turn: int | None = None) -> None:
        """Record events of a turn; None = of the next one."""
        for event in events:
            self.event(turn, **event)

    def event(self, turn: int | None = None, **event: Any) -> None:
        """Record one event, unless there are too many."""
        events, now = self._result.events, len(self._result.turns)
        if len(events) < MAX_EVENTS:
            events.append({**event, "turn": now if turn is None else turn})
        elif len(events) == MAX_EVENTS:
            events.append({"turn": now, "event": "events_left_out"})
