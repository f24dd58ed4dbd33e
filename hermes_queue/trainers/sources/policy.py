"""The policy version of a run, which a trainer's own numbers raise."""

from __future__ import annotations

import logging

from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.policy import set_version, version_of

logger = logging.getLogger(__name__)


class RunVersion:
    """The version of a run, as it was last read or set."""

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger = ledger
        self._run = run
        self.current: int | None = None
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
            RedisUnavailable: it may or may not be set.
        """
        set_version(self._ledger, self._run, numbered)
        self._offset, self.current = numbered - version, numbered
