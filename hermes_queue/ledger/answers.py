"""What the ledger answers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Verdict = Literal[
    "run", "final", "cancelled", "surplus", "held", "stale_attempt", "busy", "unknown"
]
Loss = Literal["final", "cancelled", "surplus", "lost"]
"""Why a lease is gone."""
PublishVerdict = Literal[
    "ok", "group", "dropped", "surplus", "final", "cancelled", "stale", "unknown"
]
ACCEPTED = ("ok", "group", "dropped")
"""Verdicts by which a record became the one that counts."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to `begin`; all but `verdict` is meaningful only when it is `run`."""

    verdict: Verdict
    epoch: int = 0
    attempt: int = 0
    deaths: int = 0
    """Of workers that ran it alone, in quarantine."""
    job: bytes = b""
    used_s: float = 0.0
    """Seconds of the total deadline that earlier attempts have used up."""
    attempts: tuple[bytes, ...] = ()
    """Records of failed attempts (`AttemptRecord` as JSON), oldest first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A running trajectory as its owner holds it: the fence of every later write."""

    trajectory_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class DueJob:
    """A job whose message has to be published now."""

    trajectory_id: str
    attempt: int
    lane: str
    priority: int


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Counters of one run. queued + running + finished + failed + surplus == total."""

    total: int
    queued: int
    running: int
    finished: int
    """Published with a score."""
    failed: int
    """Published without one."""
    groups: int
    """Groups in the results stream."""
    surplus: int = 0
    """Samples revoked because their group was closed without them."""
    refilled: int = 0
    """Samples added in place of failed ones; part of `total`."""
    dropped: int = 0
    """Groups that their policy threw away."""

    @property
    def done(self) -> bool:
        """Whether every trajectory is published."""
        return self.total > 0 and self.finished + self.failed + self.surplus >= self.total


RUN_COUNTERS = [field.name for field in fields(RunStatus) if field.name != "queued"]
