"""What a trainer tells the ledger, so that its run is never too far ahead of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from hermes_queue.ledger.fleet.pacing import count, pace_of, set_pace, untrained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.trainers.sources.options import FeedOptions

_AT_ONCE = 500
"""Groups per call."""


class TrainerPace:
    """The run's pace, as far as one consumer group of its trainer decides it.

    A step is reported once its weights are published, or with the next call of the feed: a group
    that begins before is sampled by the weights before, and would be one version too old.

    Args:
        options: of the feed.
        readers: all consumer groups of this trainer that read the run.
        may_fall: whether fewer groups that are asked for lower the bound.
    """

    def __init__(
        self, ledger: Ledger, options: FeedOptions, readers: Sequence[str], *, may_fall: bool
    ) -> None:
        self._ledger = ledger
        self._options = options
        self._readers = readers
        self._may_fall = may_fall
        self._asked = 0
        """Groups of a step."""
        self._most = 0
        """What this process has set."""
        self._counted = False
        """Whether what an earlier process has left is counted."""
        self._off: list[str] = []
        """Groups that are not reported yet."""

    def ask(self, groups: int) -> None:
        """Note that the trainer asks for the groups of a step."""
        self._asked = groups if self._may_fall else max(groups, self._asked)

    def off(self, *groups: str) -> None:
        """Note that the trainer has trained groups, or never will."""
        self._off += groups

    def tell(self, *, waits: bool = False, weights: Collection[str] = ()) -> None:
        """Tell the ledger what was noted, and how far the run may be ahead. May be repeated.

        Args:
            waits: whether the trainer waits for groups.
            weights: groups that the journal has.

        Raises:
            RedisUnavailable: what was noted stays noted.
        """
        self._aim()
        if waits and not self._counted:
            self._count_on(weights)
            self._counted = True
        # Also without news: the ledger has to know whose acknowledgements count.
        while self._off or waits:
            some, waits = self._off[:_AT_ONCE], False
            count(self._ledger, self._options.run, readers=self._readers, off=some)
            del self._off[: len(some)]

    def _aim(self) -> None:
        given = self._options
        if given.pace is False or given.max_lag is None:
            return
        most = (given.max_lag + 1) * (self._asked if given.pace is True else given.pace)
        if most and most != self._most:
            set_pace(self._ledger, given.run, most, readers=self._readers)
            self._most = most

    def _count_on(self, weights: Collection[str]) -> None:
        """Count what is in the stream and not in the weights: a crash may have lost weights."""
        run = self._options.run
        if pace_of(self._ledger, run) is None:
            return
        found = untrained(self._ledger, run, self._options.name)
        left = (each for each in found if each[0] not in weights)
        while some := list(itertools.islice(left, _AT_ONCE)):
            if not count(self._ledger, run, readers=self._readers, on=some):
                return
