"""A bubblewrap whose commands a spawner starts, which has entered its namespaces."""

from __future__ import annotations

import asyncio
from typing import Any

from hermes_queue.sandbox.host.bubblewrap import Bubblewrap
from hermes_queue.sandbox.host.spawner import Spawner


class SpawnedBubblewrap(Bubblewrap):
    """What the fences of slots have in common; they set `_spawner` when they begin."""

    _spawner: Spawner | None = None

    @property
    def spawner(self) -> Spawner:
        """What starts commands in it, once it has begun."""
        assert self._spawner is not None  # noqa: S101 - begun
        return self._spawner

    @property
    def has_own_network(self) -> bool:
        """Whether the slot has a loopback interface of its own."""
        return self.has_own("net")

    def ends(self) -> list[asyncio.Future[Any]]:
        """Futures of which one is done when it has died."""
        return [self.ended, self.spawner.ended]

    def is_alive(self) -> bool:
        """See `Bubblewrap`."""
        return super().is_alive() and not self.spawner.is_lost

    async def ended_from_inside(self) -> bool:
        """See `Bubblewrap`. Nothing inside reaches the spawner."""
        return not super().is_alive() and await super().ended_from_inside()

    async def kill(self) -> None:
        """See `Bubblewrap`."""
        try:
            # The spawner must reap its commands before their namespace can end.
            await super().kill()
        finally:
            if self._spawner is not None:
                self._spawner.close()
