"""The contract of a sink, which stores finished trajectories.

A sink is one module in this package; the consumer of the results stream passes it groups.
Delivery is at least once, so a sink drops trajectory ids that it already holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hermes_queue.models import ScoredTrajectory


class Sink(Protocol):
    """A destination of trajectories. One writer at a time; not thread-safe."""

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """Store new trajectories durably, so that the group may be acknowledged on return.

        Returns:
            The number of trajectories that the sink did not hold before.

        Raises:
            HermesQueueError: the destination refused; nothing of this call counts as stored.
        """
        ...

    def close(self) -> None:
        """Release the destination. Idempotent."""


class DatasetSink(Sink, Protocol):
    """A sink that builds a dataset and knows its content.

    `write(())` is allowed at any time and does work that is due, such as ending a shard.
    """

    @property
    def held(self) -> Mapping[str, str]:
        """Trajectory id -> instance id of everything in the dataset, whoever wrote it."""
        ...
