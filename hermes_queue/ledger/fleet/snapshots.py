"""Which snapshot at a provider holds what: notes in Redis, for the workers of all hosts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from hermes_queue.errors import HermesQueueError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.sandbox.fleet import SnapshotNotes

logger = logging.getLogger(__name__)

T = TypeVar("T")


class FleetSnapshots(SnapshotNotes):
    """`SnapshotNotes` in one deployment's Redis.

    While Redis does not answer nothing is known: a host then builds for itself.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, place: str, name: str) -> str | None:
        """See `SnapshotNotes`."""
        return await self._asked(self._load, place, name)

    async def save(self, place: str, name: str, snapshot_id: str, *, ttl_s: float) -> None:
        """See `SnapshotNotes`."""
        args = [place, name, snapshot_id, ttl_s]
        await self._asked(self._ledger.call, "snapshot_save", [_key(place, name)], args)

    async def forget(self, place: str, name: str, snapshot_id: str) -> None:
        """See `SnapshotNotes`."""
        await self._asked(self._ledger.call, "snapshot_forget", [_key(place, name)], [snapshot_id])

    def _load(self, place: str, name: str) -> str | None:
        with explained(self._ledger.url):
            found: Any = self._ledger.client.hget(self._ledger.key(_key(place, name)), "id")
        return found.decode() if found else None

    async def _asked(self, call: Callable[..., T], *args: Any) -> T | None:
        """What Redis answers; None while it is away or full."""
        try:
            return await asyncio.to_thread(call, *args)
        except HermesQueueError as error:
            logger.warning("snapshot not shared: %s", error, extra={"action": "snapshot_unshared"})
            return None


def _key(place: str, name: str) -> str:
    """Of fixed length and free of what names may hold."""
    text = f"{place}\n{name}".encode()
    return f"snapshot:{hashlib.sha256(text).hexdigest()[:32]}"
