"""What model calls fail of while they are tried again, for those who wait for a run.

One entry for each of the runs whose calls failed last in this process. It goes when a call of that
run succeeds, so a worker's heartbeat never tells an old story.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hermes_queue.telemetry.logs import current_trajectory
from hermes_queue.wire.ids import run_of

_RUNS = 16
"""Most runs of which trouble is kept: a heartbeat is small."""
_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Trouble:
    """The newest failed call of one run."""

    cause: str
    tries: int
    """Failed calls of this run since one succeeded."""
    next_at: float | None
    """Monotonic time of the next try of the call; None = it was given up."""

    def __str__(self) -> str:
        tries = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
        if self.next_at is None:
            return f"{self.cause}, {tries}"
        return f"{self.cause}, {tries}, next in {max(0.0, self.next_at - time.monotonic()):.0f} s"


_newest: dict[str, Trouble] = {}


def note(server: str, cause: str, delay_s: float | None) -> None:
    """Remember a failed call of the trajectory of this context; it is tried again in `delay_s`."""
    run = run_of(current_trajectory())
    known = _newest.pop(run, None)
    while len(_newest) >= _RUNS:
        del _newest[next(iter(_newest))]
    next_at = None if delay_s is None else time.monotonic() + delay_s
    tries = known.tries + 1 if known else 1
    _newest[run] = Trouble(f"{server}: {cause}"[:_CHARACTERS], tries, next_at)


def forget() -> None:
    """A call of the trajectory of this context has succeeded."""
    _newest.pop(run_of(current_trajectory()), None)


def by_run() -> dict[str, str]:
    """The trouble of each run, as one line. From any thread."""
    return {run: str(trouble) for run, trouble in list(_newest.items())}
