"""The producer of the soak: run after run, never too many jobs ahead of the workers."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import islice

from benchmarks.jobs import ROW, jobs
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.models import AgentSpec

NAME = "soak-"
"""How the ids of the runs begin."""
RUN_SIZE = 20_000
GROUP_SIZE = 4
PORTION = 1000
AHEAD = 4000
"""Jobs that may wait."""
_POLL_S = 0.2


class Producer(threading.Thread):
    """Enqueues until `stop`, and purges runs that have ended, as operators do with old ones."""

    def __init__(self, ledger: Ledger, *, size: int = RUN_SIZE) -> None:
        super().__init__(daemon=True)
        self._ledger = ledger
        self._size = size
        self._stop_asked = threading.Event()
        self._open: deque[str] = deque()
        """Runs that are not purged, oldest first."""
        self._purged = 0
        self._lock = threading.Lock()
        self.sent = 0
        self.error: Exception | None = None

    @property
    def finished(self) -> int:
        """Trajectories that are final."""
        with self._lock:
            found = (self._ledger.run_status(run).finished for run in self._open)
            return self._purged + sum(found)

    def stop(self) -> None:
        """Enqueue no more."""
        self._stop_asked.set()

    def run(self) -> None:
        """See `threading.Thread`."""
        try:
            number = 0
            while not self._stop_asked.is_set():
                number += 1
                self._enqueue(f"{NAME}{number:05}")
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error

    def _enqueue(self, run: str) -> None:
        with self._lock:
            self._open.append(run)
        nop = AgentSpec(kind="nop")
        made = jobs(self._size, group_size=GROUP_SIZE, env="gsm8k", item=ROW, agent=nop, run=run)
        while portion := list(islice(made, PORTION)):
            self._purge()
            while self._ledger.backlog() > AHEAD:
                if self._stop_asked.wait(_POLL_S):
                    return
            enqueue(portion, ledger=self._ledger)
            self.sent += len(portion)

    def _purge(self) -> None:
        """The oldest run, if that and the next one have ended."""
        with self._lock:
            oldest = [self._ledger.run_status(run) for run in tuple(self._open)[:2]]
            if [each.finished >= self._size for each in oldest] == [True, True]:
                Runs(self._ledger).purge(self._open[0])
                self._purged += self._size
                self._open.popleft()

    def drained(self, limit_s: float) -> bool:
        """Wait until all that was sent is final."""
        give_up = time.monotonic() + limit_s
        while self.finished < self.sent and time.monotonic() < give_up:
            time.sleep(_POLL_S)
        return self.finished >= self.sent
