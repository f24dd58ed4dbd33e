"""The tries of one model call: their number, the failures, and the waits in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_queue.agent.endpoint import errors as endpoint_errors
from hermes_queue.agent.tokens.continuation import ReplyAborted

GaveUp = Literal["retries", "deadline", "pause", "server"]
"""Reason for giving up: no retries are left, the wait would exceed the agent's time, the endpoint
has been paused for too long, or it asked not to be called again."""


@dataclass(slots=True)
class Tries:
    """Decides on the next try and records the failed ones."""

    max_retries: int
    pause_max_s: float
    """Seconds that a call waits for a paused endpoint."""
    failures: int = 0
    """Number of failed tries; tries that met a paused endpoint do not count."""
    aborted: int = 0
    """Number of tries that the server aborted, and whose tokens are kept."""
    last: Exception | None = None
    """Error of the last try, including pauses."""
    gave_up: GaveUp | None = None
    _failed: list[dict[str, Any]] = field(default_factory=list)
    _paused: dict[str, Any] = field(default_factory=dict)
    _paused_s: float = 0.0
    """Seconds waited because of pauses; other waits do not count towards `pause_max_s`."""
    _waits: dict[str, Any] = field(default_factory=dict)
    """The event to which the current wait belongs."""

    def waited(self, seconds: float) -> None:
        """Record a wait before the try that begins now."""
        if self._waits is self._paused:
            self._paused_s += seconds
        if self._waits:
            self._waits["waited_s"] = round(self._waits["waited_s"] + seconds, 3)

    def delay_s(self, error: Exception, *, took_s: float, left_s: float) -> float | None:
        """Record a failed try; returns the seconds to wait before the next one, None = give up.

        `took_s` is the duration of the try, `left_s` the agent's remaining time.
        """
        self.last = error
        if endpoint_errors.is_pause(error):
            return self._paused_delay_s(error)
        if isinstance(error, ReplyAborted):
            return self._aborted_delay_s(error, took_s)
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
        """Record all pauses of a call in one event: there may be thousands of tries."""
        if not self._paused:
            self._paused = {"event": "model_paused", "tries": 0, "waited_s": 0.0}
        self._paused["tries"] += 1
        self._waits = self._paused
        delay_s = endpoint_errors.retry_after_s(error) or endpoint_errors.PAUSE_S
        if delay_s > self.pause_max_s - self._paused_s:
            self.gave_up = "pause"
            return None
        return delay_s

    def _aborted_delay_s(self, error: ReplyAborted, took_s: float) -> float:
        """An aborted reply that is continued is no failure; how often is bounded elsewhere."""
        self.aborted += 1
        reason = endpoint_errors.describe(error)[:300]
        self._waits = {"event": "reply_aborted", "reason": reason, "took_s": round(took_s, 3)}
        self._waits["waited_s"] = 0.0
        self._failed.append(self._waits)
        return endpoint_errors.delay_s(error, 1)

    def out_of_time(self, error: TimeoutError) -> bool:
        """Record that time is up; the endpoint is at fault (True) if it has failed before."""
        is_at_fault = self.failures + self.aborted > 0
        if is_at_fault:
            self.gave_up = "deadline"
        else:
            self.last = error
        return is_at_fault

    def events(self) -> tuple[dict[str, Any], ...]:
        """Events for the record, in order of their beginning; empty if the first try succeeded."""
        events = [*self._failed, *([self._paused] if self._paused else [])]
        if events and self.gave_up:
            events[-1] = {**events[-1], "gave_up": self.gave_up}
        return tuple(dict(event) for event in events)

    def __str__(self) -> str:
        """The message of the call's failure."""
        times = f"{self.failures} {'try' if self.failures == 1 else 'tries'} failed"
        paused = ", and it was paused" if self._paused else ""
        why = {
            "retries": "",
            "deadline": "; no time is left for another try",
            "pause": f"; it was paused for {self._paused.get('waited_s', 0):.0f} s",
            "server": "; it asked not to be called again",
            None: "",
        }[self.gave_up]
        return f"{times}{paused}{why}, last: {endpoint_errors.describe(self.last)}"
