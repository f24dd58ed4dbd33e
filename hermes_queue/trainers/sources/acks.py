"""What a feed owes Redis: acknowledgements, dead letters, and what is not ahead any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.rows import RowRefused
from hermes_queue.trainers.sources.pace import TrainerPace

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class OwedAcks:
    """Deliveries to acknowledge as soon as Redis answers.

    Args:
        pace: gets the groups that are not ahead of the trainer any more.
        journal: what the weights hold.
    """

    def __init__(self, pace: TrainerPace, journal: StepJournal) -> None:
        self._pace = pace
        self._journal = journal
        self._owed: list[HeldGroup] = []

    def owe(self, *deliveries: HeldGroup) -> None:
        """Note deliveries for `settle`."""
        self._owed += deliveries

    def settle(self, *, waits: bool = False) -> None:
        """Acknowledge and tell what is owed; what Redis does not take stays owed."""
        try:
            while self._owed:
                self._owed[-1].ack()
                self._owed.pop()
            self._pace.tell(waits=waits, weights=self._journal.steps)
        except (RedisFull, RedisUnavailable) as error:
            logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})

    def drop(self) -> None:
        """Forget what is owed, since nobody asks for it any more."""
        self._owed.clear()

    def reject(self, deliveries: Sequence[HeldGroup], refusal: RowRefused) -> None:
        """Make deliveries of one group dead letters.

        Raises:
            RedisUnavailable: call it again.
        """
        for each in deliveries:
            each.reject(f"trainer: {refusal.reason}: {refusal}"[:500])
            self._pace.off(each.group_id)

    def insist_on_rejecting(self, delivery: HeldGroup, refusal: RowRefused) -> None:
        """As `reject`, and wait for Redis."""
        while True:
            try:
                self.reject([delivery], refusal)
                return
            except RedisUnavailable as error:
                logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
                time.sleep(_RETRY_S)
