"""Copies of a slot's files, from which another worker continues a trajectory.

An ability that a backend may have: `Capabilities.snapshot` says whether it works at present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hermes_queue.sandbox.base import Slot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of all files that a slot can write. It holds nothing else, above all no process."""

    snapshot_id: str
    """Random, of letters, digits and hyphens; never reused."""
    trajectory_id: str
    size_bytes: int
    age_s: float = 0.0


@runtime_checkable
class KeepsSnapshots(Protocol):
    """A backend with this ability.

    A snapshot outlives its slot and its worker. Workers drop those that are no longer needed, also
    those of dead workers.
    """

    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        """Copy the slot's files, while its worker runs no command in it.

        If nobody deletes it, it is there for `keep_s` at least; None = `ResumeSettings.ttl_s`.

        A slot whose restored files would not be its whole state has none: one in which processes
        run in the background.

        Raises:
            NoSnapshot: it has none, or there is no room for it; the message says why.
            SandboxError: the sandbox could not answer.
        """
        ...

    async def restore(self, slot: Slot, snapshot_id: str) -> None:
        """Fill a slot in which nothing ran yet with a snapshot of its trajectory.

        The files have the same paths as before, which the trajectory's turns may name.

        Raises:
            NoSnapshot: there is none here, it is not whole, or files have other paths in this slot.
                The slot may hold a part of it. With `may_pass`, the next attempt may succeed.
            SandboxError: the sandbox could not answer.
        """

    async def snapshots(self) -> list[Snapshot]:
        """Those of this deployment that workers have to delete, also of other workers.

        The provider may do that instead, when their time is over; then there are none here, and
        workers drop only those that they know of.
        """
        ...

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Delete it, if workers do that. No-op if it is gone; never raises."""
