"""Ends a worker whose event loop does not answer, so that its jobs run elsewhere.

The loop runs every trajectory of the process, its deadlines included, and nothing can interrupt
the code that blocks it. The keeper's thread could renew the leases all that time, and no other
worker would ever take the jobs; therefore it asks here first.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from hermes_queue.broker.pool import TaskPool
from hermes_queue.errors import EXIT_BLOCKED, HermesQueueError
from hermes_queue.ledger import Ledger
from workers.runtime import Runtime
from workers.upkeep.quarantine import boot_id

logger = logging.getLogger(__name__)

_STDERR = 2
Exit = Callable[[int], None]
_LAST_WORDS_S = 10.0
"""Seconds for the final log lines and handing jobs back."""


class BlockedLoop:
    """Decides over leases and the process by how long the loop has been silent."""

    def __init__(
        self, runtime: Runtime, ledger: Ledger, loop: TaskPool, *, end: Exit = os._exit
    ) -> None:
        """Prepare. The `ledger` is not the loop's and has short timeouts."""
        self._runtime = runtime
        self._ledger = ledger
        self._loop = loop
        self._end = end
        self._limit_s = runtime.worker.blocked_exit_s or runtime.lease.duration_s

    @property
    def may_renew(self) -> bool:
        """Whether leases may be renewed.

        They are renewed for half the limit at most: when the process ends they are old, and the
        sweep takes them soon after.
        """
        return self._loop.loop_silent_s <= self._limit_s / 2

    def look(self) -> None:
        """End the process if the loop has been silent for too long.

        The other jobs did nothing wrong and are handed back. The job that blocks it is left to the
        next sweep, which counts the worker's death against it until it has enough of them to be
        stopped for good. If the blocking job is unknown, the death is held against all.
        """
        silent_s = self._loop.loop_silent_s
        if silent_s <= self._limit_s:
            return
        # In a separate thread: the loop may be blocked by the very log that we want to write to.
        words = threading.Thread(target=self._last_words, args=(silent_s,), daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        self._end(EXIT_BLOCKED)

    def _last_words(self, silent_s: float) -> None:
        holder = self._loop.on_loop_now()
        others = {} if holder is None else self._runtime.running()
        others = {claim: task for claim, task in others.items() if task is not holder}
        logger.critical(
            "The event loop has not answered for %.0f s: this worker ends with exit code %d. %s. "
            "%d jobs are handed back; the others count a death and run elsewhere. "
            "The loop's thread is here:\n%s",
            silent_s,
            EXIT_BLOCKED,
            f"Job {holder.task_id} blocks it" if holder else "The job that blocks it is unknown",
            len(others),
            self._loop.loop_stack(),
            extra={"action": "loop_blocked_exit", "blocked_s": silent_s},
        )
        faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        with suppress(HermesQueueError):  # their leases expire anyway
            for claim in others:
                self._ledger.requeue(claim, owner=self._runtime.owner)
            # Unreported, this death might count for nothing: a sweep that takes the lease before
            # another process of this host beats has to assume that the host died.
            self._ledger.worker_ended(self._runtime.owner, boot_id=boot_id())
            self._runtime.report_log(self._ledger)
