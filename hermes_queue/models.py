"""The models that travel over Redis: jobs, trajectories, groups.

Every model is frozen and rejects unknown fields: an unknown field means a version mismatch.
`SCHEMA_VERSION` rises with every change of jobs that an older reader cannot take. Queue names
contain it, so that an old worker never receives a newer job. A record has the lowest version whose
readers can take it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from hermes_queue.errors import CAUSES, WIDE_CAUSES, Stage
from hermes_queue.wire.branches import Branch as Branch
from hermes_queue.wire.branches import BranchLabel as BranchLabel
from hermes_queue.wire.branches import Node as Node
from hermes_queue.wire.conversation import FunctionCall as FunctionCall
from hermes_queue.wire.conversation import Message as Message
from hermes_queue.wire.conversation import ToolCall as ToolCall
from hermes_queue.wire.conversation import Wire as Wire
from hermes_queue.wire.judge import JudgeSpec as JudgeSpec
from hermes_queue.wire.names import NAME_CHARACTERS, LaneName, RunId, check_ids
from hermes_queue.wire.names import Name as Name
from hermes_queue.wire.names import make_ids as make_ids
from hermes_queue.wire.parameters import (
    COUNT_MAX,
    ID_CHARACTERS,
    SHA256_CHARS,
    TEXT_CHARACTERS,
    URLS_CHARACTERS,
    holdable,
)
from hermes_queue.wire.program import ProgramRun as ProgramRun
from hermes_queue.wire.provenance import Provenance as Provenance
from hermes_queue.wire.regraded import Regraded as Regraded
from hermes_queue.wire.turns import TokenSequence as TokenSequence
from hermes_queue.wire.turns import Turn as Turn
from hermes_queue.wire.turns import TurnCall as TurnCall
from hermes_queue.wire.turns import Usage as Usage

SCHEMA_VERSION = 1
RECORD_VERSION: Literal[2] = 2
"""The newest version of records. 2: with the conversations of a program, see `_SINCE_2`."""

StopReason = Literal[
    "submitted",
    "no_tool_call",
    "max_turns",
    "max_tokens",
    "max_cost",
    "context_length",
    "time_limit",
    "format_errors",
    "stuck",
    "slot_killed",
    "exited",
    "failed",
    "cancelled",
]
"""All but the last two are outcomes of the agent and are scored."""

# --- the job ----------------------------------------------------------------------------


class AgentSpec(Wire):
    """The agent of a job. Scripted kinds need no model; `openai` and `command` call one."""

    kind: Name = "oracle"
    model: str | None = Field(default=None, max_length=TEXT_CHARACTERS)
    base_url: str | None = Field(default=None, max_length=URLS_CHARACTERS)
    """Endpoint URL, or several separated by commas, of which the job uses one. None: the worker's
    `HERMES_QUEUE_MODEL_BASE_URL`."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Passed to the endpoint unchanged: temperature, top_p, max_tokens, seed, ..."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Options of the kind, e.g. {"tools": "prompted"} for `openai` (docs/models.md), {"case":
    "..."} for `tamper`, {"seconds": 5} for `slow`."""


class Limits(Wire):
    """Bounds of one attempt. Waiting for a slot or a limiter counts towards none of them."""

    max_turns: int = Field(default=50, ge=1, le=10_000)
    max_format_errors: int = Field(default=3, ge=1, le=COUNT_MAX)
    """Stop the agent after this many consecutive turns without a schema-valid tool call."""
    max_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Completion tokens over all turns."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """Cost of all model calls in US dollars; the model needs a known price."""
    tool_timeout_s: float = Field(default=120.0, gt=0)
    setup_timeout_s: float = Field(default=300.0, gt=0)
    agent_timeout_s: float = Field(default=1800.0, gt=0)
    verify_timeout_s: float = Field(default=900.0, gt=0)
    total_timeout_s: float = Field(default=7200.0, gt=0)
    """Bound of all attempts together, counted from the first acquired slot."""
    observation_bytes: int = Field(default=16_384, ge=256, le=COUNT_MAX)
    """A longer tool output is shown to the model as its head and tail."""


class GroupPolicy(Wire):
    """Rules for closing a group. With the defaults, no sample is lost or hidden."""

    max_refills: int = Field(default=0, ge=0, le=1024)
    """Members that may be replaced by a new sample after failing for good because of the
    infrastructure. The failed ones become `extras`."""
    extra_samples: int = Field(default=0, ge=0, le=1024)
    """Samples beyond the group's size. The first `group_size` measured samples win and the rest are
    revoked. This is faster, but it favours short trajectories."""
    drop_zero_variance: bool = False
    """Drop (and count) a group whose scores are all equal."""
    stop_after_equal: int = Field(default=0, ge=0, le=1024)
    """Close a group early when its first N scores are all equal; 0 = never."""
    on_incomplete: Literal["publish", "drop"] = "publish"
    """Action for a group that cannot get `group_size` measured members any more."""
    max_policy_lag: int | None = Field(default=None, ge=0, le=COUNT_MAX)
    """Largest age of a published sample, in policy versions of the run."""
    on_stale: Literal["label", "drop", "requeue"] = "label"
    """Action for a sample older than `max_policy_lag`; `requeue` runs a new sample in its place."""
    max_requeues: int = Field(default=0, ge=0, le=1024)
    """Number of stale samples that one group may replace by new ones."""


class TrajectoryJob(Wire):
    """A request for one trajectory. Its ids are deterministic, see `make_ids`."""

    schema_version: Literal[1] = 1
    run_id: RunId
    group_id: Name
    trajectory_id: Name
    """Idempotency key: a job that is delivered twice publishes one record under this id."""
    sample_index: int = Field(ge=0, le=COUNT_MAX)
    group_size: int = Field(default=1, ge=1, le=1024)
    env: str = Field(max_length=NAME_CHARACTERS)
    """`envs.<name>`, or `package.module:Attribute`."""
    instance_id: str = Field(max_length=ID_CHARACTERS)
    item: dict[str, Any] | None = None
    """The dataset row, validated by the env's `Item` model before it was enqueued."""
    item_sha256: str | None = Field(default=None, max_length=SHA256_CHARS)
    """Set instead of `item` when the row is stored once as `item:{sha256}`."""
    agent: Annotated[AgentSpec, AfterValidator(holdable)] = Field(default_factory=AgentSpec)
    limits: Limits = Limits()
    profile: Name = "default"
    """Name of a sandbox profile in the worker's settings."""
    lane: LaneName = "train"
    priority: int = Field(default=5, ge=0, le=9)
    """Celery's Redis transport serves four classes in this order: 0 to 2, 3 to 5, 6 to 8, and 9."""
    policy_version: str | None = Field(default=None, max_length=TEXT_CHARACTERS)
    """Requested version, sent to the endpoint; the event `policy_mismatch` records any other."""
    producer: Provenance = Provenance()
    group_policy: GroupPolicy = GroupPolicy()
    requeued_from: str | None = Field(default=None, max_length=NAME_CHARACTERS)
    """The trajectory of a closed group that this job runs again."""
    judge: JudgeSpec | None = Field(default=None, exclude_if=lambda value: value is None)
    """A model that judges the trajectory. Written only then: older workers refuse such jobs."""
    needs: str = Field(default="", pattern="^([0-9a-f]{8})?$", exclude=True)
    """Equal for jobs whose slots need the same image and assets, see `envs.base.needs_of`; "" =
    unknown. The ledger keeps it with the group; it is never written into a job."""

    @model_validator(mode="after")
    def _is_consistent(self) -> TrajectoryJob:
        if (self.item is None) == (self.item_sha256 is None):
            raise ValueError("exactly one of item and item_sha256 must be set")
        # The ledger's scripts take the run id from the trajectory id.
        check_ids(self.run_id, self.group_id, self.trajectory_id, self.sample_index)
        policy = self.group_policy
        planned = self.group_size + policy.extra_samples
        if self.sample_index >= planned + policy.max_refills + policy.max_requeues:
            raise ValueError(
                f"sample_index {self.sample_index}: a group of group_size {self.group_size} and "
                f"extra_samples {policy.extra_samples} has the samples 0 to {planned - 1}"
            )
        return self

    def sample(self, index: int) -> TrajectoryJob:
        """This job for another sample of its group, not validated again: `index` is in bounds."""
        update = {"trajectory_id": f"{self.group_id}.{index}", "sample_index": index}
        return self.model_copy(update=update)


# --- the record -------------------------------------------------------------------------


_KINDS_OF_OLDER = {
    "PoisonJob": "poison",
    "IsolationUnavailable": "isolation",
    "SandboxRejected": "rejected",
    "SlotKilled": "slot_killed",
}
"""Kinds of failures whose record was written before records said it."""


class Failure(Wire):
    """The reason why a trajectory has no score."""

    cause: str = Field(pattern=f"^({'|'.join(WIDE_CAUSES)})$")
    stage: Stage
    type: str
    message: str
    kind: str = Field(
        default_factory=lambda known: (
            _KINDS_OF_OLDER.get(known.get("type", "")) or str(known.get("cause", ""))
        ),
        pattern="^[a-z_]+$",
    )
    """The cause, or a narrower one that is part of it: a row of `errors.CAUSES`."""
    refillable: bool = Field(
        default_factory=lambda known: known["kind"] in CAUSES and CAUSES[known["kind"]].refilled
    )
    """Whether a new sample may succeed, as decided by the worker that recorded the failure."""


class ToolCallCounts(Wire):
    """attempted >= schema_valid >= ok + error."""

    attempted: int = 0
    schema_valid: int = 0
    ok: int = 0
    error: int = 0


class AttemptRecord(Wire):
    """A failed attempt that was retried. Fields outside `ATTEMPT_SUMMARY` are not in datasets."""

    attempt: int
    epoch: int
    failure: Failure
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    host: str = ""
    worker: str | None = None
    sandbox_id: str | None = None
    begun_at: float | None = None
    """When its lease was taken: Unix seconds, by Redis' clock."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    """Cost of this attempt alone. The `cost_usd` of the record is that of its last attempt."""
    message_count: int = 0
    """Number of messages in the whole transcript."""
    messages: tuple[Message, ...] = ()
    """The newest messages, as many as fit into `RetrySettings.evidence_bytes`."""
    events: tuple[dict[str, Any], ...] = ()
    """The newest events, as many as fit into `RetrySettings.evidence_bytes`."""


ATTEMPT_SUMMARY = {"attempt", "epoch", "failure", "stage_seconds"}
"""Fields of an `AttemptRecord` that are small and name no host."""


class TrajectoryProvenance(Wire):
    """Where and with which software a record was made."""

    env_version: str = ""
    item_sha256: str = ""
    """Hash of the dataset row as canonical JSON. Equal rows have equal hashes, inline or stored."""
    image: str | None = None
    """Image of the sandbox, in the backend's terms; None if the backend reports none."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Versions in the worker: Python, hermes-queue, and the libraries that were loaded."""
    host: str = ""
    sandbox_id: str | None = None
    worker: str | None = None
    queued_at: float | None = None
    """When the job was enqueued, or handed back before this attempt. This and `begun_at` are Unix
    seconds by Redis' clock. `ScoredTrajectory.created` is when the record was made, and
    `TrajectoryGroup.published` when Redis accepted it."""
    begun_at: float | None = None
    """When the lease of this attempt was taken."""
    job: Provenance = Provenance()


class ScoredTrajectory(Wire):
    """The result of one job. `score is None` means *not measured*, never 0."""

    schema_version: Literal[1, 2] = 1
    """2: holds the conversations of a program, or is `unscored`."""
    run_id: Name
    group_id: Name
    trajectory_id: Name
    sample_index: int
    group_size: int
    env: str
    instance_id: str
    agent: AgentSpec
    policy_version: str | None = None
    """Version that the job requested; `turns` holds the versions that answered."""
    policy_oldest: str | None = None
    """Oldest version that served a turn; None if the endpoint reports no versions."""
    policy_newest: str | None = None
    policy_begun: int | None = None
    """The run's own version when the attempt began."""
    requeued_from: str | None = None
    """The trajectory of another group that this one ran again."""
    attempt: int = Field(ge=1)
    epoch: int = Field(ge=1)
    status: Literal["completed", "unscored", "failed"]
    """`unscored`: it ended well, and its env has no verifier by design."""
    stop_reason: StopReason
    score: FiniteFloat | None
    """Score of the task itself. Shaping terms go into `rewards`."""
    rewards: dict[str, FiniteFloat] = Field(default_factory=dict)
    failure: Failure | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    """Earlier attempts that failed, oldest first."""
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    """Tool schemas as the model saw them."""
    events: tuple[dict[str, Any], ...] = ()
    """Context rewrites and other decisions of the agent loop, in order."""
    turns: tuple[Turn, ...] = ()
    sequences: tuple[TokenSequence, ...] | None = None
    """None if the server returned no token ids."""
    nodes: tuple[Node, ...] = ()
    """All conversations of a program; `messages` is the main one."""
    branches: tuple[Branch, ...] = ()
    program: ProgramRun | None = None
    tool_calls: ToolCallCounts = ToolCallCounts()
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds per stage of this attempt; `queue` is the time from `queued_at` to `begun_at`."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    """Of all model calls of its last attempt, its judge's too, and of its slot; None = unknown."""
    sandbox_usd: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """The slot's part of `cost_usd`. Written only if slots have a price."""
    report: dict[str, Any] = Field(default_factory=dict)
    """The verifier's explanation of the score."""
    evaluation: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether nothing may be trained on it: the item belongs to an evaluation. Written only then:
    readers that do not know the field refuse only what they may not train on."""
    regraded: Regraded | None = Field(default=None, exclude_if=lambda value: value is None)
    """The record whose work this one measures again. As with `evaluation`, which it implies."""
    provenance: TrajectoryProvenance = Field(default_factory=TrajectoryProvenance)
    created: float = 0.0
    """When the record was made: Unix seconds, by the worker's clock."""

    @model_validator(mode="after")
    def _score_means_measured(self) -> ScoredTrajectory:
        if (self.status == "completed") != (self.score is not None):
            raise ValueError("a completed trajectory has a score, another one has None")
        if (self.status == "failed") != (self.failure is not None):
            raise ValueError("a failed trajectory says why in `failure`, another one has none")
        if self.schema_version == 1 and (self.nodes or self.branches or self.program):
            raise ValueError("a record with the conversations of a program has schema_version 2")
        if self.regraded and not self.evaluation:
            raise ValueError("a regrade is marked as an evaluation: nothing may be trained on it")
        if self.schema_version == 1 and self.status == "unscored":
            raise ValueError("an unscored record has schema_version 2")
        return self

    def to_json(self) -> str:
        """The record as JSON, without fields that readers of its version do not know."""
        return self.model_dump_json(exclude=_SINCE_2 if self.schema_version == 1 else None)


_SINCE_2: Any = {
    **{name: True for name in ("nodes", "branches", "program")},
    "turns": {"__all__": {"parent", "branch", "call"}},
    "sequences": {"__all__": {"turns", "branch"}},
}


def identity(source: TrajectoryJob | ScoredTrajectory) -> dict[str, Any]:
    """The fields that a record copies from its job: `ScoredTrajectory(**identity(job), ...)`."""
    return {name: getattr(source, name) for name in _IDENTITY}


_IDENTITY = (
    *("run_id", "group_id", "trajectory_id", "sample_index", "group_size"),
    *("env", "instance_id", "agent", "policy_version", "requeued_from"),
)


class TrajectoryGroup(Wire):
    """All samples of one item, published together."""

    schema_version: Literal[1] = 1
    run_id: Name
    group_id: Name
    env: str
    instance_id: str
    size: int
    members: tuple[ScoredTrajectory, ...]
    """Ordered by sample_index; at most `size`."""
    extras: tuple[ScoredTrajectory, ...] = ()
    """Samples outside the group: failed ones that were replaced, and revoked surplus samples that
    finished before the group was read. Neither `size` nor `mean` includes them."""
    complete: bool
    """Whether every member was measured, or ended well without a verifier."""
    mean: float | None
    """Mean of the measured scores; None if there are none."""
    std: float | None
    """Population standard deviation of the measured scores."""
    created: float
    finished: float
    policy_version: int | None = None
    """The run's own version when the group was published."""
    stale: tuple[str, ...] = ()
    """Members that exceeded the group's `max_policy_lag` at publication."""
    published: tuple[float, ...] = ()
    """When Redis accepted each of `members`, in their order: Unix seconds, by its clock. Empty if
    an older version published one of them."""
