"""From all leased slot-time to what went into results, account by account."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_queue.ledger.accounts.fields import WORK
from hermes_queue.ledger.accounts.goodput import Goodput

WHAT = {
    "setup": "load, prepare, get a slot, set it up",
    "waiting": "waits for a place, a permit, a resume",
    "model": "agent waits for the model",
    "tools": "agent's tools, and all else it does",
    "verify": "verifier and judge",
    "overhead": "publication, and between the stages",
    "dropped": "measured, but its group was dropped",
    "stale": "measured, but its policy was too old",
    "surplus": "its group closed without it",
    "cancelled": "cancelled",
    "refill": "failed; a new sample took its place",
    "handed_over": "handed back: shutdown, or no sandbox",
    "death": "worker died; until its lease ended",
    "unaccounted": "not reported yet, or by a dead worker",
}
"""Meaning of each account, for people; short, so that tables fit 80 columns."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One account."""

    name: str
    seconds: float
    share: float
    """Of all leased slot-time."""
    what: str

    @property
    def is_work(self) -> bool:
        """Whether the time went into trajectories that count."""
        return self.name in WORK

    @property
    def title(self) -> str:
        """The name in a terminal, where a `-` marks what came to nothing."""
        return self.name if self.is_work else f"- {self.name}"


def waterfall(good: Goodput) -> list[Loss]:
    """Losses, the largest first; then what went into trajectories that count, by activity."""
    total_s = good.leased_s
    if total_s <= 0:
        return []
    names = [name for name, _ in good.lost]
    names += [name for name in WORK if good.seconds.get(name)]
    return [
        Loss(name, good.seconds[name], good.seconds[name] / total_s, _what(name)) for name in names
    ]


def _what(name: str) -> str:
    kind, _, cause = name.partition(":")
    if kind == "retry":
        return f"failed of {cause} and was tried again"
    if kind == "failed":
        return f"failed of {cause} for good"
    return WHAT.get(name, "")
