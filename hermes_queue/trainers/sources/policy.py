"""The policy version of a run, which a trainer's own numbers raise."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.policy import set_version, version_of

logger = logging.getLogger(__name__)


def announce(published: Callable[[int], int], version: int) -> int | None:
    """Call `Feed.published`; None if Redis does not take it, which the next version makes good."""
    try:
        return published(version)
    except (RedisFull, RedisUnavailable) as error:
        logger.warning("policy version not set: %s", error, extra={"action": "redis_wait"})
        return None


class RunVersion:
    """The version of a run, as it was last read or set.

    Raises:
        RedisUnavailable: no answer.
    """

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger = ledger
        self._run = run
        self.current = version_of(ledger, run)
        self._offset: int | None = None
        """What is added to the trainer's versions; None before the first one."""

    def refresh(self) -> None:
        """Read it; if Redis does not answer, it stays as it was."""
        try:
            self.current = version_of(self._ledger, self._run)
        except RedisUnavailable as error:
            logger.warning("policy version unknown: %s", error, extra={"action": "redis_wait"})

    def numbered(self, version: int) -> int:
        """The run's version for the trainer's `version`, so that the run's does not fall.

        The same for each call, until another process raises the run's version above it.

        Raises:
            RedisUnavailable: no answer.
        """
        before = version_of(self._ledger, self._run)
        first = self._offset is None
        offset = self._offset or 0
        if before is not None and (version + offset < before or (first and version <= before)):
            offset = before + 1 - version
        self._offset = offset
        return version + offset

    def set(self, version: int, numbered: int) -> None:
        """Set it to `numbered`, for the trainer's `version`; those that follow are shifted alike.

        Raises:
            RedisUnavailable, RedisFull: it may or may not be set.
        """
        set_version(self._ledger, self._run, numbered)
        self._offset, self.current = numbered - version, numbered
