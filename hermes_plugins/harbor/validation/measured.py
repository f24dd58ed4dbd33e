"""What a validation measures of a task, and what follows from it.

A task is run by its own solution (`oracle`), by an agent that does nothing (`nop`), and by every
way to cheat (`tamper`), in the grading modes that apply to it, from strict to lax. It is graded
in the strictest mode in which its solution scores 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_plugins.harbor.task import GradingMode
from hermes_queue.models import TrajectoryJob

ValidationVerdict = Literal[
    "valid", "no_oracle", "oracle_fails", "nop_passes", "forgeable", "flaky", "failed"
]
"""`failed`: something that is not the agent's doing failed, so that nothing is known; a second
validation tries again. The others are of the task on this backend."""

SOLVED = 1.0
ALL_MODES: tuple[GradingMode, ...] = ("transplant", "restart")


@dataclass(frozen=True, slots=True)
class TaskToValidate:
    """A task with the attempts that a validation needs."""

    row: Mapping[str, Any]
    """In the form of `HarborItem`."""
    oracle: TrajectoryJob | None
    """None: the task has no solution."""
    nop: TrajectoryJob
    tampers: Mapping[str, TrajectoryJob]
    """By the way to cheat."""
    modes: tuple[GradingMode, ...]
    """Those that apply, from strict to lax."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt ended."""

    score: float | None
    """None: it failed."""
    seconds: float
    error: str = ""
    image: str = ""
    """Of the agent's slot, as its backend says it."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredMode:
    """The results of one grading mode. Not all of them are there if the first ones decide."""

    mode: GradingMode
    oracle: Sequence[AttemptResult] = ()
    nop: Sequence[AttemptResult] = ()
    tamper: Mapping[str, AttemptResult] = field(default_factory=dict)
    poisoned: AttemptResult | None = None
    """Of the solution, with code among its results that writes a reward when it is run. It says
    nothing about the verdict: the tests of some tasks have to run code."""
    executes_agent_code: bool | None = None
    """Whether it was run with the right to do so; None = that is not known."""

    @property
    def results(self) -> list[AttemptResult]:
        """All of them."""
        return [*self.oracle, *self.nop, *self.tamper.values()]

    @property
    def verdict(self) -> ValidationVerdict:
        """What these results say about the task in this mode."""
        if any(each.score is None for each in self.results):
            return "failed"
        solved = {each.score == SOLVED for each in self.oracle}
        done_by_nobody = {(each.score or 0) > 0 for each in self.nop}
        if len(solved) == 2 or len(done_by_nobody) == 2:
            return "flaky"
        if solved == {False}:
            return "oracle_fails"
        if done_by_nobody == {True}:
            return "nop_passes"
        if any((each.score or 0) > 0 for each in self.tamper.values()):
            return "forgeable"
        return "valid" if solved else "no_oracle"

    @property
    def forged(self) -> list[str]:
        """Ways to cheat that gave a reward."""
        return [name for name, each in self.tamper.items() if (each.score or 0) > 0]


def counted(modes: Sequence[MeasuredMode]) -> MeasuredMode:
    """The one of a task's modes that decides: the strictest in which the solution works.

    Where it works in none: one that failed, as a second try may tell; else the strictest, unless a
    laxer one is flaky.
    """
    verdicts = [each.verdict for each in modes]
    for number, verdict in enumerate(verdicts):
        if verdict not in ("oracle_fails", "flaky"):
            return modes[number]
    return modes[verdicts.index("flaky")] if "flaky" in verdicts else modes[0]
