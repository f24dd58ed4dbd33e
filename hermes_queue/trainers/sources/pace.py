"""What a trainer tells the ledger, so that its run is never too far ahead of it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection

from hermes_queue.ledger.fleet.pacing import (
    count,
    end_pace,
    groups_ahead,
    pace_of,
    set_pace,
    untrained,
)
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.trainers.sources.options import FeedOptions

logger = logging.getLogger(__name__)

_AT_ONCE = 500
"""Groups per call."""
_LOOK_S = 5.0
"""Shortest time between two looks at what the ledger counts."""


class TrainerPace:
    """The run's pace, as far as one consumer group of its trainer decides it.

    A step is reported once its weights are published, or with the next call of the feed: a group
    that begins before is sampled by the weights before, and would be one version too old.

    Args:
        options: of the feed.
    """

    def __init__(self, ledger: Ledger, options: FeedOptions) -> None:
        self._ledger = ledger
        self._options = options
        self._readers = (options.name,)
        self._asked = 0
        """Groups of a step."""
        self._most = 0
        """What this process has set."""
        self._counted = False
        """Whether what an earlier process has left is counted."""
        self._looks_at = 0.0
        """Monotonic time of the next look."""
        self._has_warned = False
        self._off: list[str] = []
        """Groups that are not reported yet."""

    def ask(self, groups: int) -> None:
        """Note that the trainer asks for the groups of a step."""
        self._asked = max(groups, self._asked)

    def off(self, *groups: str) -> None:
        """Note that the trainer has trained groups, or never will."""
        self._off += groups

    def end(self) -> None:
        """Let the run go on without this trainer, if the ledger counts its groups.

        Raises:
            RedisUnavailable: call it again.
        """
        end_pace(self._ledger, self._options.run, readers=self._readers)
        self._off.clear()

    def tell(self, *, waits: bool = False, weights: Collection[str] = ()) -> None:
        """Tell the ledger what was noted, and how far the run may be ahead. May be repeated.

        Args:
            waits: whether the trainer waits for groups.
            weights: groups that the journal has.

        Raises:
            RedisUnavailable: what was noted stays noted.
        """
        self._aim()
        if waits and time.monotonic() >= self._looks_at:
            self._look(weights)
            self._looks_at = time.monotonic() + _LOOK_S
        # Also without news: the ledger has to know whose acknowledgements count.
        while self._off or waits:
            some, waits = self._off[:_AT_ONCE], False
            count(self._ledger, self._options.run, readers=self._readers, off=some)
            del self._off[: len(some)]

    def _aim(self) -> None:
        given = self._options
        if given.pace is False or given.max_lag is None:
            return
        # More groups than are ever ahead would be waited for in vain.
        step = self._asked if given.pace is True else max(given.pace, self._asked)
        most = (given.max_lag + 1) * step
        if most and most != self._most:
            set_pace(self._ledger, given.run, most, readers=self._readers)
            self._most = most

    def _look(self, weights: Collection[str]) -> None:
        """Set right what a crash has left: at first one of the trainer, then those of Redis."""
        pace = pace_of(self._ledger, self._options.run)
        if pace is None:
            self._counted = True
            return
        if not self._counted:
            self._count_on(weights)
            self._counted = True
        ahead = groups_ahead(self._ledger, self._options.run)
        # A Redis that lost its last second has lost what was reported in it.
        self._off += [name for name in ahead if name in weights and name not in self._off]
        if pace.max_ahead < self._asked and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "run %s: a step takes %d groups, but only %d may be ahead: it waits for ever "
                "unless the bound is raised with `hermes-queue run pace`",
                self._options.run,
                self._asked,
                pace.max_ahead,
                extra={"action": "pace_too_narrow"},
            )

    def _count_on(self, weights: Collection[str]) -> None:
        """Count what is in the stream and not in the weights: a crash may have lost weights."""
        run = self._options.run
        found = untrained(self._ledger, run, self._options.name)
        left = (each for each in found if each[0] not in weights)
        while some := list(itertools.islice(left, _AT_ONCE)):
            if not count(self._ledger, run, readers=self._readers, on=some):
                return
