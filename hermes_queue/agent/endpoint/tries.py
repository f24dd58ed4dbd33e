"""The tries of one model call: how many, why each failed, and how long was waited in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_queue.agent.endpoint import errors as endpoint_errors

GaveUp = Literal["retries", "deadline", "pause", "server"]
"""Why there is no further try: all are used up, the wait would be longer than the agent has time,
the endpoint has been paused for too long, or it asks not to be tried again."""


@dataclass(slots=True)
class Tries:
    """Decides on the next try, and writes down what became of the others."""

    max_retries: int
    pause_max_s: float
    """How long a call waits for an endpoint that says it is paused."""
    failures: int = 0
    """Tries that failed; one that met a paused endpoint did not."""
    last: Exception | None = None
    """What the last try ended with, a pause included."""
    gave_up: GaveUp | None = None
    _failed: list[dict[str, Any]] = field(default_factory=list)
    _paused: dict[str, Any] = field(default_factory=dict)
    _paused_s: float = 0.0
    """What was waited because of it; other waiting is no sign that the pause has no end."""
    _waits: dict[str, Any] = field(default_factory=dict)
    """The event that what is waited now belongs to."""

    def waited(self, seconds: float) -> None:
        """So long was waited before the try that begins now."""
        if self._waits is self._paused:
            self._paused_s += seconds
        if self._waits:
            self._waits["waited_s"] = round(self._waits["waited_s"] + seconds, 3)

    def delay_s(self, error: Exception, *, took_s: float, left_s: float) -> float | None:
        """A try has failed of `error`: how long to wait before the next; None = give up.

        Args:
            error: one of those that `endpoint_errors.classify` would try again.
            took_s: how long the try took.
            left_s: how much time the agent has left.
        """
        self.last = error
        if endpoint_errors.is_pause(error):
            return self._paused_delay_s(error)
        self.failures += 1
        self._waits = {
            "event": "model_retry",
            "try": self.failures,
            "reason": endpoint_errors.describe(error)[:300],
            "took_s": round(took_s, 3),
            "waited_s": 0.0,
        }
        self._failed.append(self._waits)
        delay_s = endpoint_errors.delay_s(error, self.failures)
        if endpoint_errors.forbids_retry(error):
            self.gave_up = "server"
        elif self.failures > self.max_retries:
            self.gave_up = "retries"
        elif delay_s > left_s:
            self.gave_up = "deadline"
        return None if self.gave_up else delay_s

    def _paused_delay_s(self, error: Exception) -> float | None:
        """One event for all of a call's pauses: there may be thousands of tries."""
        if not self._paused:
            self._paused = {"event": "model_paused", "tries": 0, "waited_s": 0.0}
        self._paused["tries"] += 1
        self._waits = self._paused
        delay_s = endpoint_errors.retry_after_s(error) or endpoint_errors.PAUSE_S
        if delay_s > self.pause_max_s - self._paused_s:
            self.gave_up = "pause"
            return None
        return delay_s

    def out_of_time(self, error: TimeoutError) -> bool:
        """The deadline passed during a try: whether that is the endpoint's fault.

        It is when a try had failed before: else the agent has used its time up.
        """
        if self.failures:
            self.gave_up = "deadline"
        else:
            self.last = error
        return self.failures > 0

    def events(self) -> tuple[dict[str, Any], ...]:
        """For the record, in order of their beginning; empty when the first try succeeded."""
        events = [*self._failed, *([self._paused] if self._paused else [])]
        if events and self.gave_up:
            events[-1] = {**events[-1], "gave_up": self.gave_up}
        return tuple(dict(event) for event in events)

    def __str__(self) -> str:
        """For the failure of the call."""
        times = f"{self.failures} {'try' if self.failures == 1 else 'tries'} failed"
        paused = ", and it was paused" if self._paused else ""
        why = {
            "retries": "",
            "deadline": "; no time is left for another",
            "pause": f"; it was paused for {self._paused.get('waited_s', 0):.0f} s",
            "server": "; it asks not to be tried again",
            None: "",
        }[self.gave_up]
        return f"{times}{paused}{why}, last: {endpoint_errors.describe(self.last)}"
