"""Every metric of the project: name, unit, labels, and an exact definition.

Metrics are declared only here, and by plugins; docs/metrics.md lists them and a test compares the
two. No label holds a run, trajectory, task or sandbox id.
`meter.PrometheusMeter` limits each label to `MetricsSettings.max_label_values` values, to keep the
number of series small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

MetricSource = Literal["worker", "sink", "exporter"]
"""Process that serves a metric. The exporter reads Redis, so its metrics cover the whole
deployment."""

PREFIX = "hermes_queue_"

_STAGE_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
_CALL_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_AGE_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_COUNT = (1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 200)
_SCORE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. If its name has a unit, it ends in that."""

    source: MetricSource
    name: str
    """Name without `PREFIX`."""
    help: str
    """Definition of the metric, with its unit."""
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """Name in Prometheus."""
        return PREFIX + self.name

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        """Type in Prometheus: what has buckets is a histogram, and a `_total` is a counter."""
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


def _metric(
    source: MetricSource, series: str, help: str, buckets: tuple[float, ...] = ()
) -> Metric:
    """The metric of `name{label,label}`."""
    name, _, labels = series.removesuffix("}").partition("{")
    return Metric(source, name, help, tuple(filter(None, labels.split(","))), buckets)


_worker = partial(_metric, "worker")
_sink = partial(_metric, "sink")
_exporter = partial(_metric, "exporter")

# --- workers: one process each; sum over instances ------------------------------------------------

WORKER_SLOTS = _worker(
    "worker_slots{state}",
    "Slots of this worker: free, or by the stage of the trajectory that has one; agent_wait etc.: "
    "it waits for a place in that stage.",
)
ATTEMPTS = _worker(
    "attempts_total{env,outcome}",
    "Attempts that ended in this worker, including failed ones that are retried; outcome: "
    "measured, or the cause of the failure. Hand-backs and cancellations are not counted.",
)
STAGE_SECONDS = _worker(
    "stage_seconds{env,stage}",
    "Seconds of one stage of one attempt that ended, failed attempts included; stage queue: "
    "the wait before it; agent_wait etc.: the wait for a place in that stage.",
    _STAGE_S,
)
REGRADES = _worker(
    "regrades_total{env,outcome}",
    "Recorded answers that were graded again with the same row and version of the env; outcome: "
    "same, changed (the verdict is flaky).",
)
SCORE = _worker(
    "score{env}",
    "Scores of trajectories whose record Redis accepted from this worker: once per trajectory.",
    _SCORE,
)
TURNS = _worker(
    "trajectory_turns{env}",
    "Turns of a measured trajectory whose record Redis accepted from this worker.",
    _COUNT,
)
STOPS = _worker(
    "trajectory_stops_total{env,reason}",
    "Records that Redis accepted from this worker, by why the agent stopped: once per trajectory.",
)
RESUMPTIONS = _worker(
    "resumptions_total{env,outcome}",
    "Attempts of jobs with a turn journal of an ended worker; outcome: resumed, or anew if the "
    "turns could not be continued here.",
)
RESUMED_TOKENS = _worker(
    "resumed_tokens_total{env,kind}",
    "Tokens of turns that were continued instead of sampled again; kind: prompt, completion.",
)
HANDOVERS = _worker(
    "handovers_total{env,outcome}",
    "Trajectories whose agent is done in a worker with --stages agent; outcome: handed_over, or "
    "why it grades them itself (nobody: no worker grades the lane; elsewhere: some do on other "
    "hosts; full: too many wait; not_possible; stale: its lease was lost); lost: a grader could "
    "not use the work.",
)
SNAPSHOTS = _worker(
    "snapshots_total{outcome}",
    "Copies of a slot's files for the turn journal; outcome: kept, or none if the slot had files "
    "or processes of which there can be no copy.",
)
SNAPSHOT_SECONDS = _worker(
    "snapshot_seconds",
    "Seconds of one such copy.",
    _CALL_S,
)
SNAPSHOT_BYTES = _worker("snapshot_bytes_total", "Bytes of all such copies.")
FORGOTTEN = _worker(
    "forgotten_total{what}",
    "Trajectories unknown to Redis, by what this worker holds of them: delivery, or record (a "
    "finished one). If no run was purged, more than 0 means that Redis lost or evicted keys.",
)
OTEL_DROPPED = _worker(
    "otel_dropped_total{signal}",
    "Spans, log lines and metrics that this worker could not export to its OpenTelemetry "
    "collector, by signal: traces, logs or metrics.",
)
TOOL_CALLS = _worker(
    "tool_calls_total{env,outcome}",
    "Tool calls of attempts that ended; outcome: ok, error, invalid (no known tool, or arguments "
    "that do not fit), not_run.",
)
MODEL_CALLS = _worker(
    "model_calls_total{endpoint,model,outcome}",
    "Requests for a turn; outcome: ok, refused (429), paused (by the endpoint), failed. Each try "
    "counts; ok ones are the agents' turns.",
)
MODEL_SECONDS = _worker(
    "model_call_seconds{endpoint,model}",
    "Seconds of one answered request, without the wait for permission to send it.",
    _CALL_S,
)
MODEL_WAIT_SECONDS = _worker(
    "model_wait_seconds{endpoint,model}",
    "Seconds that one request waited for permission (limiter, backoff) before it was sent.",
    _CALL_S,
)
MODEL_TOKENS = _worker(
    "model_tokens_total{endpoint,model,kind}",
    "Tokens of answered requests as the server counts them, when they are answered; kind: prompt, "
    "completion, cached (part of prompt). Attempts that fail later are included.",
)

# --- sinks: one process each ----------------------------------------------------------------------

SINK_GROUPS = _sink(
    "sink_groups_total{sink}",
    "Groups that this process stored and acknowledged; a redelivered group counts again.",
)
SINK_TRAJECTORIES = _sink(
    "sink_trajectories_total{sink}",
    "Trajectories that this process added to its destination; duplicates are not counted.",
)
SINK_AGE_SECONDS = _sink(
    "sink_age_seconds{sink}",
    "Staleness in time: seconds from the end of a trajectory until it is stored.",
    _AGE_S,
)

# --- the exporter: read from Redis at each scrape, for the whole deployment -----------------------

UP = _exporter("redis_up", "1 while the exporter can read Redis.")
WORKERS = _exporter("workers", "Workers whose heartbeat has not expired.")
SLOTS = _exporter(
    "slots{state}", "Slots of all live workers: leased (a trajectory has a lease) or free."
)
LANE_DEPTH = _exporter(
    "lane_depth{lane,queue}", "Messages waiting in the queues of a lane; queue: first, retry."
)
LANE_WAITING = _exporter(
    "lane_waiting{lane}",
    "Jobs of a lane that wait, with those that no message stands for because a limit is reached.",
)
LANE_MEAN_SLOTS = _exporter(
    "lane_mean_slots{lane}", "Slots that a lane has used lately, weighted by half-life."
)
SHARE_RUNNING = _exporter(
    "share_running{kind,name}",
    "Running jobs of each lane, team, run or env for which `hermes-queue shares` has set anything, "
    "and of the fleet.",
)
LANE_AGE_SECONDS = _exporter(
    "lane_age_seconds{lane}",
    "Seconds since the message of the longest waiting job of a lane was sent, of those that are "
    "next; 0 = no job waits.",
)
LANE_BREAKER = _exporter(
    "lane_paused{lane}", "1 while the circuit breaker of a lane is not closed."
)
LANE_ENDPOINTS_HELD = _exporter(
    "lane_endpoints_held{lane}",
    "Endpoints, by model, whose circuit breaker in a lane is not closed: jobs that call one wait.",
)
LANE_WANTED = _exporter(
    "lane_wanted_slots{lane}",
    "Slots that a lane wants: its running jobs and, unless its circuit breaker has paused it, the "
    "waiting ones; at least 1 where only a worker can put jobs back. For whoever scales workers.",
)
DELAYED = _exporter("delayed", "Jobs whose message is sent later (backoff, hand-back).")
RUNS = _exporter(
    "runs{state}", "Runs known to Redis, the newest 1,000; state: active, paused, cancelled, done."
)
TRAJECTORIES = _exporter(
    "trajectories_total{env,outcome}",
    "Trajectories that became final, once each, regardless of attempts; outcome: scored, "
    "unscored (its env has no verifier), failed, cancelled.",
)
FAILURES = _exporter(
    "failures_total{env,cause}",
    "Trajectories that ended without a score, once each, by the cause of the last attempt.",
)
RETRIES = _exporter("retries_total{cause}", "Failed attempts that were retried, by cause.")
LEASE_EXPIRIES = _exporter(
    "lease_expiries_total",
    "Trajectories queued again because their worker stopped renewing the lease.",
)
JUNK_KEYS = _exporter(
    "junk_keys_total",
    "Keys of a wrong type that were removed, which another program must have written; several "
    "that are found at once may count as one.",
)
GROUPS = _exporter(
    "groups_total{env,outcome}",
    "Groups that were closed, once each; outcome: published, dropped (by their policy).",
)
DEAD_LETTERS_TOTAL = _exporter(
    "dead_letters_total{cause}", "Trajectories that became dead letters, once each."
)
DEAD_LETTERS = _exporter(
    "dead_letters", "Current number of dead letters, including groups that could not be consumed."
)
REMEMBERED_TASKS = _exporter(
    "remembered_tasks", "Tasks in the memory across runs (docs/task-memory.md)."
)
COST_USD = _exporter(
    "cost_usd_total",
    "US dollars of model calls and slots, added when an attempt ends or is handed back, including "
    "retries. Attempts whose worker died are missing.",
)
UNPRICED = _exporter(
    "unpriced_attempts_total",
    "Attempts that used tokens of a model without a known price: their cost is in no total.",
)
TOKENS = _exporter("tokens_total", "Prompt and completion tokens, added as `cost_usd_total` is.")
SLOT_SECONDS = _exporter(
    "slot_seconds_total{account}",
    "Time for which slots were leased, in seconds by account (docs/goodput.md), added shortly "
    "after a lease has ended.",
)
LOST_SLOT_SECONDS = _exporter(
    "lost_slot_seconds_total{account}",
    "Those of measured attempts that do not count in the end; account: dropped, stale.",
)
GOODPUT = _exporter(
    "goodput{per}",
    "Scored trajectories that count, of the last hour; per: slot_hour, usd (absent without cost).",
)
SANDBOX_USD = _exporter("sandbox_usd_total", "US dollars of slots, a part of `cost_usd_total`.")
TOKENS_LOST = _exporter(
    "tokens_thrown_away_total", "Tokens of attempts that were not measured, without dead workers'."
)
BUDGET_USED = _exporter(
    "budget_used_ratio{budget,amount}",
    "Spent share of a budget that runs share, in its current window; 1 = nothing may begin.",
)
BUDGET_WAITING = _exporter(
    "budget_waiting_jobs{budget}", "Jobs that wait because a shared budget has no room for them."
)
DRIFT = _exporter(
    "drift_turns_total{reason}",
    "Turns of measured trajectories that continue another turn and do not begin with all of its "
    "tokens, by the reason of the break (docs/tokens.md).",
)
CONTINUED = _exporter(
    "continued_turns_total", "All turns that continue another one, both with token ids."
)
SANDBOXES = _exporter(
    "sandboxes{backend,state}",
    "Sandboxes; state: starting (being created), running (their worker holds the lease), leaked "
    "(the lease has ended, the sandbox has not).",
)
LIMIT = _exporter(
    "limiter_calls{endpoint,model,state}",
    "Calls of a model endpoint in the whole fleet; state: limit (allowed at once now), leased (in "
    "flight), waiting.",
)
LIMIT_PAUSE = _exporter(
    "limiter_pause_seconds{endpoint,model}",
    "Seconds until the endpoint is called again, as it requested; 0 = not paused.",
)
LIMIT_ANSWERS = _exporter(
    "limiter_answers_total{endpoint,model,outcome}",
    "Calls as reported to the limiter; outcome: granted (permission given), refused (429), paused.",
)
ENGINE_TRAJECTORIES = _exporter(
    "engine_trajectories{endpoint,state}",
    "Trajectories at a model engine whose metrics are read; state: flying (their contexts count), "
    "waiting (until there is room).",
)
ENGINE_TOKENS = _exporter(
    "engine_kv_tokens{endpoint,kind}",
    "Tokens of an engine's KV cache; kind: cache (that it holds), room (that contexts may take), "
    "in_flight (that they take).",
)
ENGINE_REQUESTS = _exporter(
    "engine_requests{endpoint,state}",
    "Requests as the engine reports them; state: running, waiting.",
)
STREAM_GROUPS = _exporter("stream_groups", "Groups in the results stream.")
STREAM_BYTES = _exporter("stream_bytes", "Bytes of the bodies that wait for a reader.")
CONSUMER_BEHIND = _exporter(
    "consumer_behind_groups{group}",
    "Groups in the stream that were not delivered to a consumer group yet.",
)
CONSUMER_PENDING = _exporter(
    "consumer_pending_groups{group}", "Groups delivered to a consumer group and not acknowledged."
)
CONSUMER_AGE_SECONDS = _exporter(
    "consumer_age_seconds{group}",
    "Seconds since the publication of the oldest group that a consumer group has not acknowledged.",
)

METRICS: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
