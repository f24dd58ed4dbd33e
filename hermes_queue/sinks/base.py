"""The contract of a sink, which stores finished trajectories.

A sink receives groups from a consumer of the results stream. Delivery is at least once, so it drops
trajectory ids that it already holds. A sink of `hermes-queue sink` and `export` is one module with
a `FORMAT` (docs/extensions.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict

from hermes_queue.models import ScoredTrajectory


class Sink(Protocol):
    """A destination of trajectories. One writer at a time; not thread-safe."""

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """Store new trajectories durably, so that the group may be acknowledged on return.

        Returns:
            The number of rows that it added.

        Raises:
            HermesQueueError: the destination refused; nothing of this call counts as stored.
        """

    def close(self) -> None:
        """Release the destination. Idempotent."""


class DatasetSink(Sink, Protocol):
    """A sink that builds a dataset and knows its content.

    `write(())` is allowed at any time and does work that is due, such as ending a shard. A sink may
    have the methods `refusal` and `left_over` of `selection.Selection`, and `remarks`, lines that
    the commands print at their end.
    """

    @property
    def held(self) -> Mapping[str, str]:
        """Trajectory id -> instance id of everything in the dataset, whoever wrote it."""


START = (
    "Position at which a new consumer group begins: 0 = oldest, $ = only new groups, an entry id, "
    "or Unix seconds with a point (1790000000.0)."
)
"""Help of the option for the `start` of `consume`."""


class Closing:
    """Closes a sink at the end of a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See `Sink.close`."""
        raise NotImplementedError


class SinkOptions(BaseModel):
    """Options of a format: each field is a flag of the commands, its description the flag's help.

    `shard_rows: int = Field(2000, ge=1, description="...")` is `--shard-rows INTEGER`. Fields are
    numbers, texts, paths or booleans, all with a default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Selection of a dataset's rows, for formats that describe it."""

    filters: Mapping[str, Any] = field(default_factory=dict)
    """Filters that differ from their default."""
    decontaminated: int | None = None
    """Number of instances and repositories on the list of excluded ones."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of dataset: `FORMAT` in its module, whose name is that of the format."""

    help: str
    """The format, and the meaning of --out, for the command's help."""
    open: Callable[[Path, Any, RowChoice], DatasetSink]
    """Opens the sink at a path with an instance of `options`. Raises ConfigurationError where it
    cannot write to the path, InputError where an option names an unreadable file."""
    keeps_failed: bool = False
    """Whether failed trajectories have rows by default."""
    keeps_side: bool = False
    """Whether rows have the tokens of all branches of a program by default, also of `side`."""
    options: type[SinkOptions] = SinkOptions
