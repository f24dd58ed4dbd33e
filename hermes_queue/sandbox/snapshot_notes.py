"""Which snapshot at a provider holds what, told from one worker to the others.

Backends know no Redis: workers hand them notes that the whole fleet reads.
"""

from __future__ import annotations

from typing import Protocol


class SnapshotNotes(Protocol):
    """Notes of one deployment. None of the methods raises: at worst a snapshot is made again."""

    async def load(self, place: str, name: str) -> str | None:
        """The id of the snapshot called `name` at `place`, e.g. an app of the provider."""
        ...

    async def save(self, place: str, name: str, snapshot_id: str, *, ttl_s: float) -> None:
        """Tell the others; an earlier note of that name is replaced. It holds for `ttl_s`."""
        ...

    async def forget(self, place: str, name: str, snapshot_id: str) -> None:
        """The provider does not have this one any more. A newer note stays."""
        ...


class NoNotes:
    """Nothing is told and nothing known."""

    async def load(self, place: str, name: str) -> str | None:
        """See `SnapshotNotes`."""
        return None

    async def save(self, place: str, name: str, snapshot_id: str, *, ttl_s: float) -> None:
        """See `SnapshotNotes`."""

    async def forget(self, place: str, name: str, snapshot_id: str) -> None:
        """See `SnapshotNotes`."""
