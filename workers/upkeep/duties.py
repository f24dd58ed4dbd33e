"""Calls that a separate thread repeats at intervals, whatever exceptions they raise."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes_queue.errors import HermesQueueError

logger = logging.getLogger(__name__)

_TICK_S = 0.1
_JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Duty:
    """One call."""

    name: str
    every_s: float
    call: Callable[[], object]
    again_s: float | None = None
    """Delay before a failed call is repeated; None = its normal interval."""


class Duties:
    """Runs duties until `stop`."""

    def __init__(self, name: str, duties: Sequence[Duty]) -> None:
        """Prepare; `start` begins. `name` names the thread and prefixes the log's actions."""
        self._name = name
        self._duties = duties
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._turned_at = time.monotonic()
        self._done_at: dict[str, float] = {}

    @property
    def silent_s(self) -> float:
        """Seconds since the thread last began a call, or looked whether one is due."""
        return time.monotonic() - self._turned_at

    def since_s(self, name: str) -> float:
        """Seconds since the call of this name last succeeded; infinite if it never has."""
        return time.monotonic() - self._done_at.get(name, -math.inf)

    def start(self) -> None:
        """Start with one call of every duty."""
        self._thread.start()

    def stop(self) -> None:
        """End; a call that hangs is left behind. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def guarded(self, name: str, call: Callable[[], object]) -> bool:
        """Make one call; a failure is logged and returned as False."""
        thread = self._name
        try:
            call()
        except HermesQueueError as error:
            logger.warning("%s: %s", name, error, extra={"action": f"{thread}_{name}"})
        except Exception:  # the thread must survive any error of a single duty
            logger.exception("%s failed", name, extra={"action": f"{thread}_{name}"})
        else:
            self._done_at[name] = time.monotonic()
            return True
        return False

    def _loop(self) -> None:
        due = {duty.name: 0.0 for duty in self._duties}
        while not self._stop.wait(_TICK_S):
            self._turned_at = time.monotonic()
            for duty in self._duties:
                self._turned_at = now = time.monotonic()
                if now < due[duty.name]:
                    continue
                due[duty.name] = now + duty.every_s
                if not self.guarded(duty.name, duty.call) and duty.again_s is not None:
                    due[duty.name] = now + min(duty.every_s, duty.again_s)
