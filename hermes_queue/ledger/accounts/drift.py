"""Token drift of a run: turns that render the last reply to other tokens than were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.accounts.fields import DRIFTED, TURNS
from hermes_queue.ledger.accounts.goodput import sums_of
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger


@dataclass(frozen=True, slots=True)
class Drift:
    """What is known of one run."""

    turns: int = 0
    """Turns of measured trajectories that continue another one, both with token ids."""
    drifted: int = 0
    """Those of them with unexpected breaks."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """All breaks by reason, expected ones too."""
    max_drift: float | None = None
    """Share of the turns above which the run is paused; None = it never is."""

    @property
    def share(self) -> float | None:
        """Of all these turns; None without any."""
        return self.drifted / self.turns if self.turns else None


def drift_of(ledger: Ledger, run_id: str) -> Drift:
    """The drift of a run. Raises RedisUnavailable."""
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        pipe.hgetall(ledger.key(f"goodput:{run_id}"))
        pipe.hget(ledger.key(f"run:{run_id}"), "max_drift")
        fields, limit = pipe.execute()
    counts = {
        name.removeprefix("k|"): int(value)
        for name, value in sums_of(fields).items()
        if name.startswith("k|")
    }
    turns, drifted = counts.pop(TURNS, 0), counts.pop(DRIFTED, 0)
    return Drift(turns, drifted, counts, None if limit is None else float(limit))


def set_max_drift(ledger: Ledger, run_id: str, max_drift: float | None) -> None:
    """Set the share of turns above which the run is paused, None for never; it is not resumed."""
    ledger.call("run_drift", run_id=run_id, max_drift=max_drift, run_ttl_s=RUN_TTL_S)
