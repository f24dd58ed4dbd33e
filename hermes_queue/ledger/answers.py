"""Types of the ledger's arguments and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, PayloadTooLarge
from hermes_queue.models import TrajectoryJob, Usage
from hermes_queue.wire.ids import message_id, sample_of

BeginVerdict = Literal[
    "run",
    "final",
    "cancelled",
    "surplus",
    "none",
    "held",
    "paused",
    "paced",
    "over_budget",
    "stale_attempt",
    "busy",
    "unknown",
]
Notice = Literal["final", "cancelled", "surplus", "lost", "paused", "cancel"]
"""Why a lease is gone (the first four). For the others it is kept: the run is `paused`, or the job
has to end as cancelled (`cancel`)."""
PublishVerdict = Literal[
    "ok",
    "outdated",
    "group",
    "dropped",
    "surplus",
    "unstored",
    "final",
    "cancelled",
    "stale",
    "unknown",
]
ACCEPTED = ("ok", "outdated", "group", "dropped")
"""Verdicts with which a record became the one that counts."""


JOB_MAX_BYTES = 256 << 10
"""Most of an encoded job: each member of its group has one in Redis until it has ended."""


class Accepted(list[TrajectoryJob]):
    """Jobs that one call of `enqueue` has claimed."""

    def __init__(self, jobs: Iterable[TrajectoryJob], claim: str) -> None:
        super().__init__(jobs)
        self.claim = claim
        """Pass it to `published`."""


class JobRows:
    """Jobs of one run as `enqueue.lua` takes them: what samples of a group share is said once."""

    def __init__(self, jobs: Iterable[TrajectoryJob]) -> None:
        self.bodies: list[bytes] = []
        self.groups: dict[tuple[str | int, ...], int] = {}
        """Rows with their places, from 1 on."""
        self.jobs: list[tuple[str | int, ...]] = []
        place, previous = 0, None
        for job in jobs:
            if previous is None or not _differ_in_ids_alone(job, previous):
                place = self._add(job)
            body, previous = len(self.bodies), job
            self.jobs.append((job.trajectory_id, place, body, job.lane, job.priority))

    def _add(self, job: TrajectoryJob) -> int:
        body = codec.encode_job(job, of_any_sample=True)
        if len(body) > JOB_MAX_BYTES:
            raise PayloadTooLarge(
                f"job {job.trajectory_id} has {len(body)} bytes, the cap is {JOB_MAX_BYTES}: "
                "shorten sampling and params of its agent, or have its row travel apart "
                "(HERMES_QUEUE_PRODUCER_ITEM_INLINE_BYTES)"
            )
        self.bodies.append(body)
        policy = job.group_policy
        planned = job.group_size + policy.extra_samples
        shown = (job.env, job.instance_id)
        policy_json = policy.model_dump_json(exclude_defaults=True)
        group = (job.group_id, job.group_size, planned, policy_json, *shown, job.needs)
        return self.groups.setdefault(group, len(self.groups) + 1)


_SHARED = tuple(TrajectoryJob.model_fields.keys() - {"trajectory_id", "sample_index"})


def _differ_in_ids_alone(job: TrajectoryJob, other: TrajectoryJob) -> bool:
    """Whether one body serves both: a worker reads it under the id of its own sample."""
    one, two = job.__dict__, other.__dict__
    if one["group_id"] != two["group_id"]:
        return False
    return all(one[name] is two[name] or one[name] == two[name] for name in _SHARED)


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to `begin`; without the verdict `run`, only `trajectory_id` is meaningful."""

    verdict: BeginVerdict
    epoch: int = 0
    attempt: int = 0
    deaths: int = 0
    """Deaths of workers that ran it alone, in quarantine."""
    job: bytes = b""
    used_s: float = 0.0
    """Seconds of the total deadline that earlier attempts have used."""
    attempts: tuple[bytes, ...] = ()
    """Records of failed attempts as `hermes_queue.ledger.attempts` packs them, oldest first."""
    policy_version: int | None = None
    """The run's current one."""
    queued_at: float | None = None
    """Start of its wait for this attempt; Unix seconds by Redis' clock, as `begun_at`."""
    begun_at: float | None = None
    cancel: str = ""
    """Why it has to end as cancelled instead of running; "" = run it."""
    any_poison: bool = False
    """Whether any items are known under which workers died; `poison.isolate` checks for this
    one."""
    has_journal: bool = False
    """Whether turns of an earlier attempt are kept."""
    booked_epoch: int = 0
    """Tokens of kept turns up to this epoch count in the run's budgets already."""
    handed: str = ""
    """Token of the hand-over if its agent is done and it is to be graded; "" = neither."""
    needs: str = ""
    """See `TrajectoryJob.needs`."""
    trajectory_id: str = ""
    """The trajectory that the answer is about, whatever the verdict."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A running trajectory as its owner holds it: the fencing token of every later write."""

    trajectory_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens and cost of one attempt."""

    tokens: int = 0
    cost_usd: float | None = 0.0
    """None = the price is unknown."""

    @classmethod
    def of(cls, usage: Usage, cost_usd: float | None) -> Spent:
        """From a record's fields: an attempt without tokens of a model costs nothing."""
        tokens = usage.prompt_tokens + usage.completion_tokens
        return cls(tokens, cost_usd if tokens else cost_usd or 0.0)

    def __add__(self, other: Spent) -> Spent:
        """Both together; the cost is unknown if that of either is."""
        cost_usd = None
        if self.cost_usd is not None and other.cost_usd is not None:
            cost_usd = self.cost_usd + other.cost_usd
        return Spent(self.tokens + other.tokens, cost_usd)

    def without(self, booked: Spent) -> Spent:
        """What is left of it; without tokens that is nothing, though prices are unknown."""
        tokens = max(0, self.tokens - booked.tokens)
        if self.cost_usd is None or booked.cost_usd is None:
            return Spent(tokens, None if tokens else 0.0)
        return Spent(tokens, max(0.0, self.cost_usd - booked.cost_usd))

    @property
    def cost(self) -> float | None:
        """The cost as the ledger's scripts take it: a plain float."""
        return None if self.cost_usd is None else float(self.cost_usd)


NOTHING_SPENT = Spent()
BOOKED_TOKENS, BOOKED_USD = "booked_tokens", "booked_usd"
"""In the events of a record that another worker has begun: what counted in budgets by then."""


def booked_facts(booked: Spent) -> dict[str, Any]:
    """The same, for an event."""
    return {BOOKED_TOKENS: booked.tokens, BOOKED_USD: booked.cost_usd}


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The Redis lists, without our prefix, that can hold messages of a lane."""

    retry: list[str]
    """For retries and jobs that were handed or taken back; polled before the first queue of the
    lane, within a priority class."""
    first: list[str]
    """For jobs that have never begun."""

    @property
    def all(self) -> list[str]:
        """All lists of the lane."""
        return self.retry + self.first


class Recovered(NamedTuple):
    """What one look for jobs that stand nowhere has found."""

    removed: str
    """Name of a key of a wrong type that was removed lately; "" = none."""
    trajectory_ids: list[str]
    """Jobs that had lost their place and have one again."""
    more: bool
    """Whether to look again at once."""


@dataclass(frozen=True, slots=True)
class RunPart:
    """How a run shares the slots with others; see docs/scheduling.md."""

    team: str = ""
    """The team whose share the run uses; a run stays in the team that its first call names."""
    weight: float | None = None
    """Of the run among those of its team; None = as it is, at first 1."""
    max_running: int | None = None
    """Trajectories of the run at once; None = as it is, at first unlimited."""

    @classmethod
    def of(cls, team: str | None, weight: float | None, max_running: int | None) -> RunPart:
        """From what a person gave.

        Raises:
            ConfigurationError: a value cannot be one; the message says which and why.
        """
        name = team or ""
        if len(name) > TEAM_MAX or not re.fullmatch(r"(\w[\w./:@+-]*)?", name):
            raise ConfigurationError(
                f"team {name[:80]!r}: use up to {TEAM_MAX} letters, digits and . _ / : @ + -, and "
                "begin with a letter or digit"
            )
        if weight is not None and not 0.001 <= weight <= 1e6:  # NaN fails, too
            raise ConfigurationError(f"weight {weight}: use a number from 0.001 to 1,000,000")
        if max_running is not None and not 1 <= max_running <= 10_000_000:
            raise ConfigurationError(f"max_running {max_running}: use a whole number from 1 on")
        return cls(name, weight, max_running)


TEAM_MAX = 120
"""Characters of a team's name."""
DEFAULT_PART = RunPart()

INSTANCE_SHOWN = 28
"""Characters of an instance id in a label; longer ids lose their middle."""


@dataclass(frozen=True, slots=True)
class DueJob:
    """A job whose message has to be published now."""

    trajectory_id: str
    attempt: int
    lane: str
    priority: int
    env: str = ""
    """Only for people, as `instance_id`; "" = unknown."""
    instance_id: str = ""
    cancel: bool = False
    """Whether it only has to end as cancelled."""

    @classmethod
    def of(cls, row: Any) -> DueJob:
        """From a row of `due.lua`."""
        texts = {name: value.decode(errors="replace") for name, value in row._asdict().items()}
        attempt, priority = int(texts["attempt"]), int(texts["priority"])
        shown = (texts["env"], texts["instance_id"], bool(texts["cancel"]))
        return cls(texts["id"], attempt, texts["lane"], priority, *shown)

    @property
    def task_id(self) -> str:
        """Id of its message."""
        return message_id(self.trajectory_id, self.attempt, cancel=self.cancel)

    @property
    def label(self) -> str:
        """Short name, for Flower: env, instance and sample."""
        if not self.env:
            return self.trajectory_id
        sample = sample_of(self.trajectory_id)
        return f"{short_env(self.env)}:{middle(self.instance_id, INSTANCE_SHOWN)}#{sample}"


def middle(text: str, most: int) -> str:
    """`text`, shortened in its middle if it is too long: names differ at their ends."""
    if len(text) <= most:
        return text
    head = (most - 2) // 2
    return f"{text[:head]}..{text[len(text) - (most - 2 - head) :]}"


def short_env(env: str) -> str:
    """The short name of an env: of `package.module:Attr` only the module."""
    return env.partition(":")[0].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Counters of one run; those in `ENDED`, `queued` and `running` add up to `total`."""

    total: int
    queued: int
    running: int
    finished: int
    """Published with a score, or without one by the env's design."""
    failed: int
    """Published as failed."""
    groups: int
    """Groups in the results stream."""
    surplus: int = 0
    """Samples revoked because their group was closed without them."""
    refilled: int = 0
    """Samples added in place of failed ones; part of `total`."""
    dropped: int = 0
    """Groups dropped by their policy."""
    dropped_zero_variance: int = 0
    """Groups dropped because all scores were equal; part of `dropped`."""
    dropped_incomplete: int = 0
    """Groups dropped because they could not complete; part of `dropped`."""
    incomplete: int = 0
    """Groups closed with fewer measured samples than their size, dropped ones included."""
    stopped_early: int = 0
    """Groups closed early because their first scores were equal; part of `incomplete`."""
    cancelled: int = 0
    """Trajectories that had not ended when the run was cancelled."""
    stale: int = 0
    """Measured, but not used because their policy was too old."""
    stale_requeued: int = 0
    """Samples added in place of stale ones; part of `total`."""
    stale_labelled: int = 0
    """Published members of groups whose policy was older than the bound; part of `finished`."""
    policy_unknown: int = 0
    """Published members of runs with `max_policy_lag` whose policy version is unknown; part of
    `finished`."""

    @property
    def done(self) -> bool:
        """Whether every trajectory has ended."""
        return self.total > 0 and self.queued + self.running == 0

    @classmethod
    def of(cls, raw: Sequence[str]) -> RunStatus:
        """The counters in the `RUN_COUNTERS` of a run; "" = a field that it does not have."""
        counts = dict(zip(RUN_COUNTERS, (int(value or 0) for value in raw), strict=True))
        settled = sum(counts[name] for name in ("running", *ENDED))
        return cls(queued=max(0, counts["total"] - settled), **counts)


ENDED = ("finished", "failed", "surplus", "cancelled", "stale")
"""Counters of ended trajectories; each trajectory is in one of them."""
MAIN_COUNTERS = ("total", "queued", "running", "finished", "failed", "cancelled")
"""Those that people look at."""
RUN_COUNTERS = [field.name for field in fields(RunStatus) if field.name != "queued"]


def number_in(field: str | bytes | None) -> float:
    """The number in a field of a hash; 0 if the field is missing, or holds no number."""
    try:
        return float(field or 0)
    except ValueError:
        return 0.0
