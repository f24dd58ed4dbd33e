"""Options: what part of the slots the run gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from producers.run.flags import Options, at_least, flag, number

if TYPE_CHECKING:
    from hermes_queue.ledger.answers import RunPart


@dataclass(frozen=True)
class PartOptions(Options):
    """The run's part of the slots, see docs/scheduling.md."""

    title: ClassVar[str] = "the run beside others"
    team: str | None = flag(
        "team whose share of the slots the run uses (default: none, a share of its own)",
        metavar="NAME",
    )
    weight: float | None = flag(
        "weight of the run among those of its team (default: 1)",
        type=number(0.001),
        metavar="W",
    )
    max_running: int | None = flag(
        "trajectories of the run at once (default: as many as slots are free)",
        type=at_least(1),
        metavar="N",
    )

    @property
    def part(self) -> RunPart:
        """As the ledger takes it.

        Raises:
            ConfigurationError: the team's name cannot be one.
        """
        from hermes_queue.ledger.answers import RunPart  # heavy: `--help` does without

        return RunPart.of(self.team, self.weight, self.max_running)
