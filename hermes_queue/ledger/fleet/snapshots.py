"""Notes in Redis about snapshots at a provider, for the workers of all hosts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.sandbox.fleet import SnapshotNotes

logger = logging.getLogger(__name__)

T = TypeVar("T")


class FleetSnapshots(SnapshotNotes):
    """`SnapshotNotes` in one deployment's Redis.

    While Redis does not answer, nothing is known: a host then builds for itself.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, place: str, name: str) -> str | None:
        """See `SnapshotNotes`."""
        read = self._ledger.hash_fields
        found = await self._asked(read, f"snapshot:{_hash(place, name)}", "id")
        return (found and found[0]) or None

    async def save(self, place: str, name: str, snapshot_id: str, *, ttl_s: float) -> None:
        """See `SnapshotNotes`."""
        await self._asked(
            self._ledger.call,
            "snapshot_save",
            hash=_hash(place, name),
            place=place,
            name=name,
            id=snapshot_id,
            ttl_s=ttl_s,
        )

    async def forget(self, place: str, name: str, snapshot_id: str) -> None:
        """See `SnapshotNotes`."""
        await self._asked(
            self._ledger.call, "snapshot_forget", hash=_hash(place, name), id=snapshot_id
        )

    async def _asked(self, call: Callable[..., T], *args: Any, **given: Any) -> T | None:
        """The answer of `call`; None while Redis is away or full."""
        try:
            return await asyncio.to_thread(call, *args, **given)
        except HermesQueueError as error:
            logger.warning("snapshot not shared: %s", error, extra={"action": "snapshot_unshared"})
            return None


def _hash(place: str, name: str) -> str:
    """A key part of fixed length, without special characters of names."""
    return hashlib.sha256(f"{place}\n{name}".encode()).hexdigest()[:32]
