"""Options: what the run may use before it pauses."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

from producers.run.flags import Options, flag, number

_POSITIVE = number(0, above=True)


def _share(text: str) -> float:
    value = number(0)(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"must be 0 to 1, not {text}; 0.01 is one turn in 100")
    return value


@dataclass(frozen=True)
class BudgetOptions(Options):
    """Budgets of the run, and how far its tokens may drift."""

    title: ClassVar[str] = "budgets of the run; it pauses when one is spent"
    cost_usd: float | None = flag(
        "largest cost of all model calls and slots of the run",
        spelled="--budget-cost",
        type=_POSITIVE,
        metavar="USD",
    )
    tokens: float | None = flag(
        "largest number of prompt and completion tokens of the run together",
        spelled="--budget-tokens",
        type=_POSITIVE,
        metavar="N",
    )
    slot_hours: float | None = flag(
        "longest time for which slots are leased to the run, all together",
        spelled="--budget-slot-hours",
        type=_POSITIVE,
        metavar="HOURS",
    )
    wall_s: float | None = flag(
        "longest time since the run's first enqueue",
        spelled="--budget-wall",
        type=_POSITIVE,
        metavar="SECONDS",
    )
    max_drift: float | None = flag(
        "pause the run when a larger share of its turns has drifted, e.g. 0.01 (docs/tokens.md)",
        type=_share,
        metavar="SHARE",
    )

    def given(self) -> dict[str, Any]:
        """The budgets, by the names that `set_budgets` takes."""
        found = super().given()
        found.pop("max_drift", None)
        hours = found.pop("slot_hours", None)
        return found if hours is None else found | {"slot_s": 3600 * hours}
