"""State that a backend shares with the other workers, without knowing about Redis.

A backend's constructor receives one `Fleet`. The default is a fleet of one process, so a backend
uses it without asking whether there is a deployment.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes_queue.sandbox.base import SandboxBackend, Slot

if TYPE_CHECKING:
    import asyncio


class SandboxObserver:
    """Receives events of a backend's sandboxes and slots, on its event loop; this one ignores them.

    Workers record them in the ledger, so that the reaper can end what a dead worker left behind.
    """

    async def created(self, sandbox_id: str, labels: Mapping[str, str]) -> None:
        """A sandbox exists now. Awaited before its first slot is leased; never raises."""

    def leased(self, slot: Slot) -> None:
        """A slot serves `slot.trajectory_id` from now on. Returns at once, never raises."""

    def released(self, slot_id: str) -> None:
        """The slot has ended, by release or renewal. Returns at once, never raises."""

    def gone(self, sandbox_id: str) -> None:
        """The sandbox was ended by its own backend. Returns at once, never raises."""


@dataclass(frozen=True, slots=True)
class CreationRate:
    """The most that a provider accepts from a whole fleet; chosen by the backend."""

    creates_per_s: float
    """Sandboxes created per second."""
    max_starting: int
    """Sandboxes that may be starting at once."""


class CreationGate(Protocol):
    """Entered once per sandbox: providers refuse bursts, and thousands at once start slowly."""

    def creating(self, rate: CreationRate) -> AbstractAsyncContextManager[None]:
        """Waits for its turn on entry; the sandbox counts as starting until the exit."""
        ...


class ProcessCreationGate:
    """A gate for one process and one rate: a token bucket of one second, and a semaphore."""

    def __init__(self) -> None:
        self._starting: asyncio.Semaphore | None = None
        self._free_at = 0.0
        """Time (monotonic) at which the bucket would be full again, minus one second."""

    @asynccontextmanager
    async def creating(self, rate: CreationRate) -> AsyncIterator[None]:
        """See `CreationGate`."""
        import asyncio  # imported here: producers load this module before they print their help

        if self._starting is None:
            self._starting = asyncio.Semaphore(rate.max_starting)
        async with self._starting:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 1.0) + 1.0 / rate.creates_per_s
            if self._free_at > now:
                await asyncio.sleep(self._free_at - now)
            yield


class SnapshotNotes:
    """Notes about snapshots at a provider, so that one host builds for all; this class keeps none.

    None of the methods raises: at worst a snapshot is built again.
    """

    async def load(self, place: str, name: str) -> str | None:
        """The id of the snapshot called `name` at `place`, e.g. an app of the provider."""
        return None

    async def save(self, place: str, name: str, snapshot_id: str, *, ttl_s: float) -> None:
        """Share a snapshot for `ttl_s`; an earlier note of that name is replaced."""

    async def forget(self, place: str, name: str, snapshot_id: str) -> None:
        """Drop the note of a snapshot that the provider no longer has. A newer note stays."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet as one worker's backend sees it."""

    observer: SandboxObserver = field(default_factory=SandboxObserver)
    """Called for every sandbox and slot."""
    gate: CreationGate = field(default_factory=ProcessCreationGate)
    """Entered before each sandbox is created, with the backend's own rate."""
    snapshots: SnapshotNotes = field(default_factory=SnapshotNotes)
    """For a provider that keeps snapshots of directories or file systems."""


class BackendFactory(Protocol):
    """A backend's class, or a function, that takes these keywords."""

    def __call__(
        self,
        *,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        fleet: Fleet | None = None,
    ) -> SandboxBackend:
        """A backend that has not been started.

        Args:
            slots: leases at once; None = from its own settings.
            labels: of every sandbox, at least deployment and worker; None = for a single
                process.
            fleet: None = a fleet of this process alone.
        """
        ...
