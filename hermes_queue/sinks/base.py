"""What takes finished trajectories away.

A sink is one module in this package, handed groups by whoever consumes the results
stream. Delivery is at least once, so a sink drops what it already has, by trajectory id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hermes_queue.models import ScoredTrajectory


class Sink(Protocol):
    """A destination of trajectories. One writer at a time; not thread-safe."""

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """Store what is new; it is durable on return, so that the group may be acknowledged.

        Returns:
            How many of them the sink did not hold before.

        Raises:
            HermesQueueError: the destination refused; nothing of this call counts as stored.
        """
        ...

    def close(self) -> None:
        """Free the destination. Idempotent."""


class DatasetSink(Sink, Protocol):
    """A sink that builds a dataset: it knows what it holds.

    `write(())` is allowed at any time and does what has become due, such as ending a shard.
    """

    @property
    def held(self) -> Mapping[str, str]:
        """The instance id of every trajectory id in the dataset, earlier lives included."""
        ...
