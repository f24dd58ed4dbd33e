"""Dead letters: jobs that cannot run, with the evidence, in the stream `dead`."""

from __future__ import annotations

from hermes_queue.connection import explained
from hermes_queue.ledger.ledger import Ledger


class DeadLetters:
    """The stream of dead letters of one deployment."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def bury(self, trajectory_id: str, *, reason: str, job: bytes) -> None:
        """Keep the evidence of a job that cannot run."""
        with explained(self._ledger.url):
            self._ledger.client.xadd(
                self._ledger.key("dead"),
                {"trajectory_id": trajectory_id, "reason": reason, "job": job},
            )
