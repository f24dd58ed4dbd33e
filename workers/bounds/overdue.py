"""Attempts that go on although their stage is over: somebody's code swallows cancellations."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from hermes_queue.ledger import Claim

logger = logging.getLogger(__name__)


class HasStageEnd(Protocol):
    """What is known of an attempt."""

    @property
    def stage(self) -> str:
        """The stage that it is in."""
        ...

    @property
    def overdue_s(self) -> float:
        """Seconds since that should have ended; 0 = it may go on."""
        ...


class Overdue:
    """Finds attempts whose stage goes on after its deadline. For one thread."""

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: how long a stage may take to end after its deadline has cancelled it."""
        self._grace_s = grace_s
        self._known: frozenset[Claim] = frozenset()

    def find(self, attempts: Mapping[Claim, HasStageEnd]) -> tuple[frozenset[Claim], list[Claim]]:
        """All that are overdue or have been, and those of them that are new since the last call."""
        late = {claim for claim, each in attempts.items() if each.overdue_s > self._grace_s}
        fresh = [claim for claim in late if claim not in self._known]
        for claim in fresh:
            each = attempts[claim]
            extra = {"action": "stage_stuck", "trajectory_id": claim.trajectory_id}
            logger.error(
                "%s goes on %.0f s after its deadline: it is cancelled again, and its lease is "
                "not renewed; the code of its env swallows cancellations",
                each.stage,
                each.overdue_s,
                extra=extra,
            )
        self._known = frozenset(late | (self._known & attempts.keys()))
        return self._known, fresh
