"""What becomes of a worker whose event loop does not answer: it ends, and its jobs run elsewhere.

The loop runs every trajectory of the process, its deadlines included, and nothing can interrupt
what blocks it. The keeper's thread could keep the leases up for as long, and then nobody would ever
take the jobs; so it asks here before it does.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hermes_queue.broker.pool import Job
from hermes_queue.errors import EXIT_BLOCKED, HermesQueueError
from hermes_queue.ledger import Ledger
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

_STDERR = 2
_LAST_WORDS_S = 10.0
"""For what is logged and handed back at the end."""


class WatchedLoop(Protocol):
    """What is known of the event loop; `TaskPool` is one."""

    @property
    def loop_silent_s(self) -> float:
        """For how long it has not answered."""

    def loop_stack(self) -> str:
        """Where its thread is now."""

    def on_loop_now(self) -> Job | None:
        """The job whose own code it runs, if that is known."""


def _exit(code: int) -> None:
    os._exit(code)


class BlockedLoop:
    """Decides over leases and the process by how long the loop has been silent."""

    def __init__(
        self,
        runtime: Runtime,
        ledger: Ledger,
        loop: WatchedLoop,
        *,
        end: Callable[[int], None] = _exit,
    ) -> None:
        """Prepare.

        Args:
            runtime: whose jobs wait for the loop.
            ledger: of a thread beside it, and impatient.
            loop: which is watched.
            end: ends the process with an exit code, without asking anybody.
        """
        self._runtime = runtime
        self._ledger = ledger
        self._loop = loop
        self._end = end
        self._limit_s = runtime.worker.blocked_exit_s or runtime.lease.duration_s

    @property
    def may_renew(self) -> bool:
        """Whether leases may be kept up.

        No longer than for half the limit: by the time that the process ends they are old, and the
        sweep takes them soon after.
        """
        return self._loop.loop_silent_s <= self._limit_s / 2

    def look(self) -> None:
        """End the process if the loop has been silent for too long.

        The job that holds it is left to the sweep, which counts a death of its worker against it,
        as often as it takes to stop it for good. The others are handed back: it was no doing of
        theirs. When nobody knows which one it is, all are left.
        """
        silent_s = self._loop.loop_silent_s
        if silent_s <= self._limit_s:
            return
        # In a thread of their own: it may be the log that the loop waits for.
        words = threading.Thread(target=self._last_words, args=(silent_s,), daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        self._end(EXIT_BLOCKED)

    def _last_words(self, silent_s: float) -> None:
        holder = self._loop.on_loop_now()
        others = {} if holder is None else self._runtime.running()
        others = {claim: job for claim, job in others.items() if job is not holder}
        logger.critical(
            "The event loop has not answered for %.0f s: this worker ends with exit code %d. %s. "
            "%d jobs are handed back, the rest runs elsewhere when its leases have ended. "
            "The loop's thread is here:\n%s",
            silent_s,
            EXIT_BLOCKED,
            f"{holder!r} holds it" if holder else "Which job holds it is not known",
            len(others),
            self._loop.loop_stack(),
            extra={"action": "loop_blocked_exit", "blocked_s": silent_s},
        )
        faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        with suppress(HermesQueueError):  # their leases end by themselves, too
            for claim in others:
                self._ledger.requeue(claim, owner=self._runtime.owner)
            self._runtime.tell_log(self._ledger)
