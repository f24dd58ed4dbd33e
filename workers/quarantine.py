"""A worker process of its own for jobs under which workers die.

After two deaths a job moves to the lane `<lane>.quarantine`. Somebody who shares a process with
it would be condemned by its next death, so it gets one alone: any worker that sees a job waiting
there starts a child with a single slot, which ends when the lane is empty. Draining a worker
instead would stop its 255 other jobs from being replaced, for as long as the longest one runs.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hermes_queue
from hermes_queue import child_process
from hermes_queue.connection import explained
from hermes_queue.ledger import Ledger
from hermes_queue.queues import QUARANTINE, queue_keys
from hermes_queue.settings import PREFIX

logger = logging.getLogger(__name__)

_STOP_S = 10.0
_IDLE_S = 20.0


class QuarantineWorker:
    """At most one child, for all quarantine lanes of a worker."""

    def __init__(self, ledger: Ledger, lanes: Callable[[], Sequence[str]]) -> None:
        """Prepare; nothing is started.

        Args:
            ledger: the worker's Redis.
            lanes: that the worker serves now. Quarantine lanes among them need no child.
        """
        self._ledger = ledger
        self._served = lanes
        self._process: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Start the child if a job waits in quarantine and none is there.

        Raises:
            RedisUnavailable: whether one waits is not known.
        """
        lanes = [lane + QUARANTINE for lane in self._served() if not lane.endswith(QUARANTINE)]
        if not lanes or (self._process and self._process.poll() is None):
            return
        keys = [self._ledger.key(key) for lane in lanes for key in queue_keys(lane).all]
        with explained(self._ledger.url):
            waits = self._ledger.client.exists(*keys)
        if waits:
            self._process = self._start(lanes)

    def stop(self) -> None:
        """End the child; a job it runs is handed back. Idempotent."""
        process, self._process = self._process, None
        child_process.end(process, _STOP_S)

    def _start(self, lanes: Sequence[str]) -> subprocess.Popen[bytes]:
        logger.warning(
            "a job waits in quarantine; starting a worker for it alone",
            extra={"action": "quarantine_worker"},
        )
        source = str(Path(hermes_queue.__file__).parent.parent)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            f"{PREFIX}REDIS_URL": self._ledger.url,
            f"{PREFIX}WORKER_LANES": ",".join(lanes),
            f"{PREFIX}WORKER_EXIT_WHEN_IDLE_S": str(_IDLE_S),
            f"{PREFIX}WORKER_SOFT_SHUTDOWN_S": "0",
        }
        if os.environ.get(f"{PREFIX}METRICS_WORKER_PORT"):  # ours is taken, by us
            environment[f"{PREFIX}METRICS_WORKER_PORT"] = "0"
        command = [sys.executable, "-m", "celery", "-A", "hermes_queue", "worker"]
        command += ["--concurrency", "1", "--loglevel", "info", "--without-gossip"]
        command += ["--without-mingle", "--hostname", f"quarantine-{os.getpid()}@%h"]
        return child_process.start(command, environment)
