"""One process reads a consumer group of a trainer: two would train each other's groups again.

The journal's lock cannot say it of two directories. So the group has a key in Redis that its
reader renews. A successor in the same directory takes it at once, since the lock of the journal
shows that the holder is dead; any other one waits until the key expires.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

from hermes_queue.errors import ConfigurationError, RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

LEASE_S = 10.0
"""Time after which the key of a dead holder expires."""
_POLL_S = 0.25


class ReaderLease:
    """The key of a consumer group, held until `close`. A thread renews it.

    Args:
        name: of the consumer group.
        journal: file that this process has locked.

    Raises:
        ConfigurationError: a process with another journal reads the group.
        RedisUnavailable: no answer.
    """

    def __init__(self, ledger: Ledger, name: str, journal: Path) -> None:
        self._ledger = ledger
        self._name = name
        self._key = ledger.key(f"sink:{name}")
        facts = journal.stat()
        path = journal.resolve()
        self._holder = f"{socket.gethostname()}:{facts.st_dev}:{facts.st_ino}:{path}"
        self._other = ""
        """Who took the key from us."""
        self._ended = threading.Event()
        until = time.monotonic() + LEASE_S + 4 * _POLL_S
        while other := self._taken():
            if time.monotonic() > until:
                raise self._refusal(other)
            time.sleep(_POLL_S)
        self._renewed_s = time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="trainer lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Make sure that the group is still ours.

        Raises:
            ConfigurationError: this process was silent for so long that another one took over.
        """
        if time.monotonic() - self._renewed_s > LEASE_S:  # a process that was stopped, for instance
            self._renew()
        if self._other:
            raise self._refusal(self._other)

    def close(self) -> None:
        """Release the group. Idempotent."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(LEASE_S / 4)
        client: Any = self._ledger.client
        try:
            with explained(self._ledger.url):
                # Not atomic: between the two it can only expire if we were silent for that long.
                if client.get(self._key) == self._holder.encode():
                    client.delete(self._key)
        except RedisUnavailable:
            logger.debug("%s was not released; it expires", self._key)

    def _taken(self) -> str:
        """Take or renew the key; returns who else has it, "" if nobody has."""
        client: Any = self._ledger.client
        ttl_ms = int(1000 * LEASE_S)
        try:
            with explained(self._ledger.url):
                if client.set(self._key, self._holder, nx=True, px=ttl_ms):
                    return ""
            is_full = False
        except RedisFull:
            is_full = True  # only readers make room, so the key is taken once there is some
        with explained(self._ledger.url):
            other: str = (client.get(self._key) or b"").decode(errors="replace")
            if other == self._holder:
                client.pexpire(self._key, ttl_ms)
                return ""
        if not other and not is_full:
            return self._taken()  # it expired between the two commands
        return other

    def _keep(self) -> None:
        while not self._ended.wait(LEASE_S / 4):
            self._renew()

    def _renew(self) -> None:
        now_s = time.monotonic()
        try:
            self._other = self._taken()
            self._renewed_s = now_s
        except RedisUnavailable as error:
            logger.debug("%s was not renewed: %s", self._key, error)

    def _refusal(self, other: str) -> ConfigurationError:
        host, _, _, path = (*other.split(":", 3), "", "", "")[:4]
        return ConfigurationError(
            f"consumer group {self._name!r} is read by another process, whose journal is "
            f"{path or other} on {host}: each would get groups of the other one. Give every "
            "training a name of its own, or end that process"
        )
