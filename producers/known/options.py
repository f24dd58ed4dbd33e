"""The flags of producers about the memory of tasks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

from producers.run.flags import Options, at_least, flag, switch

DEFAULT_ATTEMPTS = 4


def band(text: str) -> tuple[float, float]:
    """A type of argparse for pass rates."""
    from hermes_queue.ledger.tasks import band_of  # Redis, which `--help` does without

    try:
        return band_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class KnownOptions(Options):
    """Choices by what a deployment remembers of tasks."""

    title: ClassVar[str] = "what is remembered of tasks (docs/task-memory.md)"
    skip_solved: bool = switch("leave out tasks that were always solved (pass rate 1)")
    skip_impossible: bool = switch("leave out tasks that were never solved (pass rate 0)")
    pass_rate: tuple[float, float] | None = flag(
        "leave out tasks with a pass rate outside this band, e.g. 0.1-0.9",
        type=band,
        metavar="LOW-HIGH",
    )
    min_attempts: int = flag(
        "scores that a task needs before its pass rate is believed (default:"
        f" {DEFAULT_ATTEMPTS}); tasks with fewer are run",
        default=DEFAULT_ATTEMPTS,
        type=at_least(1),
        metavar="N",
    )
    known_by: str | None = flag(
        "model whose pass rates count, agent:KIND for an agent without a model, or any for all"
        " models together (default: the run's own model)",
        metavar="MODEL",
    )
    skip_flaky: bool = switch(
        "leave out tasks where a regrade of the same answer gave another score"
    )
    skip_deadly: bool = switch("leave out tasks under which workers have died")
    longest_first: bool = switch(
        "send the jobs of tasks that took longest first, so that no long one begins last"
    )
    estimate: bool = switch("say how long the run will take and what it will cost")

    @property
    def chooses(self) -> bool:
        """Whether rows may be left out."""
        skips = (self.skip_solved, self.skip_impossible, self.skip_flaky, self.skip_deadly)
        return any(skips) or self.pass_rate is not None

    @property
    def asks(self) -> bool:
        """Whether the memory is needed."""
        return self.chooses or self.longest_first or self.estimate
