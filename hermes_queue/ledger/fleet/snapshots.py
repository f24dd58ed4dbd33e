"""Notes in Redis about snapshots at a provider, for the workers of all hosts."""

from __future__ import annotations

from functools import partial

from hermes_queue.ledger.fleet.notes import note_key, unless_away
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.sandbox.fleet import SnapshotNotes

_asked = partial(unless_away, "snapshot not shared", {"action": "snapshot_unshared"})


class FleetSnapshots(SnapshotNotes):
    """`SnapshotNotes` in one deployment's Redis.

    While Redis does not answer, nothing is known: a host then builds for itself.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, place: str, name: str) -> str | None:
        """See `SnapshotNotes`."""
        read = self._ledger.hash_fields
        found = await _asked(read, f"snapshot:{note_key(place, name)}", "id")
        return (found and found[0]) or None

    async def save(self, place: str, name: str, snapshot_id: str, *, ttl_s: float) -> None:
        """See `SnapshotNotes`."""
        await _asked(
            self._ledger.call,
            "snapshot_save",
            hash=note_key(place, name),
            place=place,
            name=name,
            id=snapshot_id,
            ttl_s=ttl_s,
        )

    async def forget(self, place: str, name: str, snapshot_id: str) -> None:
        """See `SnapshotNotes`."""
        await _asked(
            self._ledger.call, "snapshot_forget", hash=note_key(place, name), id=snapshot_id
        )
