"""The key in Redis by which one process at a time reads a consumer group.

Two would get each other's groups. The key expires some seconds after its holder is dead.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

LEASE_S = 10.0
"""Time after which the key of a dead holder expires."""


class SoleReader:
    """The key of a consumer group: `take` it, and `close`. A thread renews it in between.

    Args:
        name: of the consumer group, or another name that is unique to the reader.
        identity: without colons; a successor of the same identity takes the key at once, so it
            has to be sure that the holder is dead.
        about: what the reader is, for others that are refused.
    """

    def __init__(self, ledger: Ledger, name: str, *, identity: str, about: str) -> None:
        self._ledger = ledger
        self._name = name
        self._key = ledger.key(f"sink:{name}")
        self._holder = f"{socket.gethostname()}:{identity}:{about}"
        self._other = ""
        """Who took the key from us."""
        self._renewed_s = 0.0
        self._ended = threading.Event()
        self._calling = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self) -> str:
        """Take the key; returns who else has it, "" if it is ours now.

        Raises:
            RedisUnavailable: no answer.
        """
        with self._calling:
            if self._ended.is_set() or (other := self._taken()):
                return "" if self._ended.is_set() else _described(other)
            self._renewed_s = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="sole reader", daemon=True)
                self._thread.start()
        return ""

    def other(self) -> str:
        """Who took the key since, because this process was silent for too long; "" = nobody."""
        is_late = time.monotonic() - self._renewed_s > LEASE_S  # a process that was stopped, say
        if is_late and not self._ended.is_set():
            self._renew()
        return _described(self._other) if self._other else ""

    def close(self) -> None:
        """Release the key. Idempotent."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LEASE_S / 4)
        with self._calling:  # a `take` that its caller no longer waits for
            try:
                self._ledger.call("sink_release", group=self._name, holder=self._holder)
            except (RedisFull, RedisUnavailable):
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
            logger.warning(
                "cannot renew %s: %s", self._key, error, extra={"action": "renew_failed"}
            )


def _described(holder: str) -> str:
    host, _, about = (*holder.split(":", 2), "", "")[:3]
    return f"{about} on {host}" if about else holder
