"""One process reads a consumer group of a trainer: two would train each other's groups again.

The journal's lock cannot say it of two directories, so the group has a key in Redis as well. A
successor in the same directory takes it at once, since the lock of the journal shows that the
holder is dead; any other one waits until the key expires.
"""

from __future__ import annotations

import time
from pathlib import Path

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results import sole_reader
from hermes_queue.results.sole_reader import SoleReader

_POLL_S = 0.25


class ReaderLease:
    """The key of a consumer group, held until `close`.

    Args:
        name: of the consumer group.
        journal: file that this process has locked.

    Raises:
        ConfigurationError: a process with another journal reads the group.
        RedisUnavailable: no answer.
    """

    def __init__(self, ledger: Ledger, name: str, journal: Path) -> None:
        self._name = name
        facts = journal.stat()
        identity = f"{facts.st_dev}.{facts.st_ino}"
        about = f"the trainer whose journal is {journal.resolve()}"
        self.reader = SoleReader(ledger, name, identity=identity, about=about)
        until = time.monotonic() + sole_reader.LEASE_S + 4 * _POLL_S
        while other := self.reader.take():
            if time.monotonic() > until:
                raise self._refusal(other)
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Make sure that the group is still ours.

        Raises:
            ConfigurationError: this process was silent for so long that another one took over.
        """
        if other := self.reader.other():
            raise self._refusal(other)

    def close(self) -> None:
        """Release the group. Idempotent."""
        self.reader.close()

    def _refusal(self, other: str) -> ConfigurationError:
        return ConfigurationError(
            f"consumer group {self._name!r} is read by {other}: each would get groups of the other "
            "one. Give every training a name of its own, or end that process"
        )
