"""What travels over Redis: jobs, trajectories, groups.

Every model is frozen and closed: an unknown field is a version mismatch, not noise.
`SCHEMA_VERSION` rises with any change that an older reader cannot take; queues carry
it in their name, so that an old worker never meets a newer job.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from hermes_queue.wire.conversation import FunctionCall as FunctionCall
from hermes_queue.wire.conversation import Message as Message
from hermes_queue.wire.conversation import ToolCall as ToolCall
from hermes_queue.wire.conversation import Wire as Wire
from hermes_queue.wire.failure import Failure as Failure
from hermes_queue.wire.names import LaneName, RunId, check_ids
from hermes_queue.wire.names import Name as Name
from hermes_queue.wire.names import make_ids as make_ids
from hermes_queue.wire.parameters import COUNT_MAX, holdable

SCHEMA_VERSION = 1

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
    "failed",
    "cancelled",
]
"""All but the last two are outcomes of the agent and are scored."""

# --- the job ----------------------------------------------------------------------------


class AgentSpec(Wire):
    """Who acts. Scripted kinds need no model; `openai` talks to an endpoint."""

    kind: Name = "oracle"
    model: str | None = None
    base_url: str | None = None
    """Endpoint of this job, or several separated by commas, of which it uses one; None takes
    the worker's `HERMES_QUEUE_MODEL_BASE_URL`."""
    sampling: dict[str, Any] = {}
    """Passed to the endpoint as they are: temperature, top_p, max_tokens, seed, ..."""
    params: dict[str, Any] = {}
    """Of the kind, e.g. {"tools": "prompted"} for `openai` (docs/models.md), {"case": "..."} for
    `tamper`, {"seconds": 5} for `slow`."""


class Limits(Wire):
    """Bounds of one attempt. Waiting for a slot or a limiter counts towards none of them."""

    max_turns: int = Field(default=50, ge=1, le=10_000)
    max_format_errors: int = Field(default=3, ge=1, le=COUNT_MAX)
    """Consecutive turns without one schema-valid call after which the agent is stopped."""
    max_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Completion tokens over all turns."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """Of the model calls; needs a price for the model."""
    tool_timeout_s: float = Field(default=120.0, gt=0)
    setup_timeout_s: float = Field(default=300.0, gt=0)
    agent_timeout_s: float = Field(default=1800.0, gt=0)
    verify_timeout_s: float = Field(default=900.0, gt=0)
    total_timeout_s: float = Field(default=7200.0, gt=0)
    """Over all attempts, counted from the first acquired slot."""
    observation_bytes: int = Field(default=16_384, ge=256, le=COUNT_MAX)
    """Longer tool output reaches the model as head and tail."""


class Provenance(Wire):
    """Who made a job: producer module, package version, git commit when known."""

    producer: str = ""
    version: str = ""
    git: str | None = None


class GroupPolicy(Wire):
    """When a group is closed, and with whom. The defaults lose and hide nothing."""

    max_refills: int = Field(default=0, ge=0, le=1024)
    """Members that failed for good for reasons of infrastructure and are replaced by a new
    sample; the failed ones become `extras`."""
    extra_samples: int = Field(default=0, ge=0, le=1024)
    """Samples beyond the group's size. The first `group_size` measured ones win, the rest is
    revoked: faster, but it favours short trajectories."""
    drop_zero_variance: bool = False
    """Whether a group whose scores are all the same is thrown away (and counted)."""
    stop_after_equal: int = Field(default=0, ge=0, le=1024)
    """Close a group early when its first so many scores are all the same; 0 = never."""
    on_incomplete: Literal["publish", "drop"] = "publish"
    """What becomes of a group that cannot have `group_size` measured members."""
    max_policy_lag: int | None = Field(default=None, ge=0, le=COUNT_MAX)
    """How many versions the run's policy may be ahead of a sample when that is published."""
    on_stale: Literal["label", "drop", "requeue"] = "label"
    """What becomes of a sample beyond that; requeue: a new sample takes its place."""
    max_requeues: int = Field(default=0, ge=0, le=1024)
    """New samples of one group in place of stale ones."""


class TrajectoryJob(Wire):
    """One attempt-to-be of one agent at one item. The ids are deterministic, see `make_ids`."""

    schema_version: Literal[1] = 1
    run_id: RunId
    group_id: Name
    trajectory_id: Name
    """Idempotency key: whatever is delivered twice publishes once under this id."""
    sample_index: int = Field(ge=0, le=COUNT_MAX)
    group_size: int = Field(default=1, ge=1, le=1024)
    env: str
    """`envs.<name>`, or `package.module:Attribute`."""
    instance_id: str
    item: dict[str, Any] | None = None
    """The dataset row, already validated by the env's `Item` model."""
    item_sha256: str | None = None
    """Set instead of `item` when the row is stored once as `item:{sha256}`."""
    agent: Annotated[AgentSpec, AfterValidator(holdable)] = AgentSpec()
    limits: Limits = Limits()
    profile: Name = "default"
    """Sandbox profile by name, as the worker's settings describe it."""
    lane: LaneName = "train"
    priority: int = Field(default=5, ge=0, le=9)
    """Celery's Redis transport has four classes of it: 0 to 2 are served first, then 3 to 5, 6 to
    8, and 9."""
    policy_version: str | None = None
    """Wanted; the endpoint is told, and the record says when another one was served."""
    producer: Provenance = Provenance()
    group_policy: GroupPolicy = GroupPolicy()
    requeued_from: str | None = None
    """The trajectory, of a closed group, that this one runs again."""

    @model_validator(mode="after")
    def _one_item(self) -> TrajectoryJob:
        if (self.item is None) == (self.item_sha256 is None):
            raise ValueError("exactly one of item and item_sha256 must be set")
        return self

    @model_validator(mode="after")
    def _ids_nest(self) -> TrajectoryJob:
        # The ledger's scripts read the run off the trajectory id.
        check_ids(self.run_id, self.group_id, self.trajectory_id, self.sample_index)
        return self

    @model_validator(mode="after")
    def _is_in_group(self) -> TrajectoryJob:
        policy = self.group_policy
        planned = self.group_size + policy.extra_samples
        if self.sample_index >= planned + policy.max_refills + policy.max_requeues:
            raise ValueError(
                f"sample_index {self.sample_index}: a group of group_size {self.group_size} and "
                f"extra_samples {policy.extra_samples} has the samples 0 to {planned - 1}"
            )
        return self


# --- the record -------------------------------------------------------------------------


class Usage(Wire):
    """Tokens as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Turn(Wire):
    """One model call. Token fields are the server's own, or None: never re-encoded text."""

    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Of `completion_ids`, one each, rounded to float32 at capture."""
    logprobs_mode: str | None = None
    """Of which distribution: `raw_logprobs`, before temperature and the like, or
    `processed_logprobs`, after them (vLLM's names). None = not known."""
    sampling: dict[str, Any] = {}
    server: str | None = None
    """URL of the endpoint, without credentials."""
    server_version: str | None = None
    """What runs there and its version, e.g. `vllm 0.32.0`. None = not known."""
    policy_version: str | None = None
    """Of the weights, as the server names them; the last one where they changed in the turn."""
    policy_spans: tuple[tuple[str, int], ...] = ()
    """Then: each version, and the index in `completion_ids` from which on it sampled."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    latency_s: float = 0.0


class TokenSequence(Wire):
    """Turns merged where each prompt extends the last one exactly."""

    ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 for tokens the policy sampled, 0 for context."""
    logprobs: tuple[float, ...]
    """0.0 where the mask is 0."""


class ToolCallCounts(Wire):
    """attempted >= schema_valid >= ok + error."""

    attempted: int = 0
    schema_valid: int = 0
    ok: int = 0
    error: int = 0


class AttemptRecord(Wire):
    """What is kept of an attempt that failed and was retried.

    All but `ATTEMPT_SUMMARY` is evidence for whoever looks into the failure; datasets leave it out.
    """

    attempt: int
    epoch: int
    failure: Failure
    stage_seconds: dict[str, float] = {}
    host: str = ""
    worker: str | None = None
    sandbox_id: str | None = None
    begun_at: float | None = None
    """When its lease was taken: Unix seconds, by Redis' clock."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    """Of this attempt alone; the record's own is that of the last one."""
    message_count: int = 0
    """Of the whole transcript."""
    messages: tuple[Message, ...] = ()
    """The newest of them, as many as `RetrySettings.evidence_bytes` has room for."""
    events: tuple[dict[str, Any], ...] = ()
    """The newest ones, likewise."""


ATTEMPT_SUMMARY = {"attempt", "epoch", "failure", "stage_seconds"}
"""Fields of an `AttemptRecord` that are small and name no host."""


class TrajectoryProvenance(Wire):
    """Where and with what a record was made."""

    env_version: str = ""
    item_sha256: str = ""
    """Of the dataset row as canonical JSON: equal rows, equal hashes, however they travelled."""
    image: str | None = None
    """What the sandbox was made of, in the backend's words; None = it tells nothing."""
    packages: dict[str, str] = {}
    """Versions in the worker: Python, our own, and of the libraries that were loaded."""
    host: str = ""
    sandbox_id: str | None = None
    worker: str | None = None
    queued_at: float | None = None
    """When it was enqueued, or given back before this attempt; this and the next in Unix seconds
    by Redis' clock. `ScoredTrajectory.created` is when the record was made, and
    `TrajectoryGroup.published` when Redis took it."""
    begun_at: float | None = None
    """When this attempt's lease was taken."""
    job: Provenance = Provenance()


class ScoredTrajectory(Wire):
    """The result of one job. `score is None` means *not measured*, never 0."""

    schema_version: Literal[1] = 1
    run_id: Name
    group_id: Name
    trajectory_id: Name
    sample_index: int
    group_size: int
    env: str
    instance_id: str
    agent: AgentSpec
    policy_version: str | None = None
    """The one that the job wanted; what was served is in `turns`."""
    policy_oldest: str | None = None
    """Of the versions that served the turns; None when the endpoint tells none."""
    policy_newest: str | None = None
    policy_begun: int | None = None
    """The run's own version when the attempt began."""
    requeued_from: str | None = None
    """The trajectory, of another group, that this one ran again."""
    attempt: int = Field(ge=1)
    epoch: int = Field(ge=1)
    status: Literal["completed", "failed"]
    stop_reason: StopReason
    score: FiniteFloat | None
    """The task's own measure. Shaping terms live in `rewards`."""
    rewards: dict[str, FiniteFloat] = {}
    failure: Failure | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    """Earlier attempts that failed, oldest first."""
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    """Tool schemas as offered to the model."""
    events: tuple[dict[str, Any], ...] = ()
    """Context rewrites and other decisions of the loop, in order."""
    turns: tuple[Turn, ...] = ()
    sequences: tuple[TokenSequence, ...] | None = None
    """None when the server gave no token ids."""
    tool_calls: ToolCallCounts = ToolCallCounts()
    stage_seconds: dict[str, float] = {}
    """Of this attempt; `queue` is all the time from `queued_at` to `begun_at`."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    report: dict[str, Any] = {}
    """The verifier's own account of its verdict."""
    provenance: TrajectoryProvenance = TrajectoryProvenance()
    created: float = 0.0
    """When the record was made: Unix seconds, by the worker's clock."""

    @model_validator(mode="after")
    def _score_means_measured(self) -> ScoredTrajectory:
        if (self.status == "completed") != (self.score is not None):
            raise ValueError("a completed trajectory has a score, a failed one has None")
        if (self.status == "failed") != (self.failure is not None):
            raise ValueError("a failed trajectory says why in `failure`, a completed one has none")
        return self


def identity(source: TrajectoryJob | ScoredTrajectory) -> dict[str, Any]:
    """Which sample of what this is: the fields that a record repeats from its job.

    Made to be passed on: `ScoredTrajectory(**identity(job), attempt=1, ...)`.
    """
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
    """Samples beside the group: failed ones that were replaced, and revoked surplus that was
    kept by the time of reading. They count towards neither size nor mean."""
    complete: bool
    """Whether every member was measured."""
    mean: float | None
    """Of the measured scores; None without any."""
    std: float | None
    """Population standard deviation of the measured scores."""
    created: float
    finished: float
    policy_version: int | None = None
    """The run's own version when the group was published."""
    stale: tuple[str, ...] = ()
    """Members that were beyond the group's `max_policy_lag` then."""
    published: tuple[float, ...] = ()
    """When Redis took each of `members`, in their order: Unix seconds, by its clock. Empty where
    an older version published one."""
