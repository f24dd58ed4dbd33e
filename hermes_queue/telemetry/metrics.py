"""Every metric of the project: name, unit, labels, and an exact definition.

Metrics are declared only here; docs/metrics.md lists them and a test compares the two. No label
holds a run, trajectory, task or sandbox id, and `meter.PrometheusMeter` limits each label to
`MetricsSettings.max_label_values` values, to keep the number of series small.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """One metric.

    Names of counters end in `_total`, names of others in their unit if they have one.
    """

    source: MetricSource
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    """Name without `PREFIX`."""
    help: str
    """Definition of the metric, with its unit."""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """Name in Prometheus."""
        return PREFIX + self.name


# --- workers: one process each; sum over instances ------------------------------------------------

WORKER_SLOTS = Metric(
    "worker",
    "gauge",
    "worker_slots",
    "Slots of this worker: free, or by the stage of the trajectory that has one.",
    ("state",),
)
ATTEMPTS = Metric(
    "worker",
    "counter",
    "attempts_total",
    "Attempts that ended in this worker, including failed ones that are retried; outcome: "
    "measured, or the cause of the failure. Hand-backs and cancellations are not counted.",
    ("env", "outcome"),
)
STAGE_SECONDS = Metric(
    "worker",
    "histogram",
    "stage_seconds",
    "Seconds of one stage of one attempt that ended, failed attempts included; stage queue: "
    "the wait before it.",
    ("env", "stage"),
    _STAGE_S,
)
SCORE = Metric(
    "worker",
    "histogram",
    "score",
    "Scores of trajectories whose record Redis accepted from this worker: once per trajectory.",
    ("env",),
    _SCORE,
)
TURNS = Metric(
    "worker",
    "histogram",
    "trajectory_turns",
    "Turns of a measured trajectory whose record Redis accepted from this worker.",
    ("env",),
    _COUNT,
)
STOPS = Metric(
    "worker",
    "counter",
    "trajectory_stops_total",
    "Records that Redis accepted from this worker, by why the agent stopped: once per trajectory.",
    ("env", "reason"),
)
FORGOTTEN = Metric(
    "worker",
    "counter",
    "forgotten_total",
    "Trajectories unknown to Redis, by what this worker holds of them: delivery, or record (a "
    "finished one). If no run was purged, more than 0 means that Redis lost or evicted keys.",
    ("what",),
)
TOOL_CALLS = Metric(
    "worker",
    "counter",
    "tool_calls_total",
    "Tool calls of attempts that ended; outcome: ok, error, invalid (no known tool, or arguments "
    "that do not fit), not_run.",
    ("env", "outcome"),
)
MODEL_CALLS = Metric(
    "worker",
    "counter",
    "model_calls_total",
    "Requests for a turn; outcome: ok, refused (429), paused (by the endpoint), failed. Each try "
    "counts; ok ones are the agents' turns.",
    ("endpoint", "model", "outcome"),
)
MODEL_SECONDS = Metric(
    "worker",
    "histogram",
    "model_call_seconds",
    "Seconds of one answered request, without the wait for permission to send it.",
    ("endpoint", "model"),
    _CALL_S,
)
MODEL_WAIT_SECONDS = Metric(
    "worker",
    "histogram",
    "model_wait_seconds",
    "Seconds that one request waited for permission (limiter, backoff) before it was sent.",
    ("endpoint", "model"),
    _CALL_S,
)
MODEL_TOKENS = Metric(
    "worker",
    "counter",
    "model_tokens_total",
    "Tokens of answered requests as the server counts them, when they are answered; kind: prompt, "
    "completion, cached (part of prompt). Attempts that fail later are included.",
    ("endpoint", "model", "kind"),
)

# --- sinks: one process each ----------------------------------------------------------------------

SINK_GROUPS = Metric(
    "sink",
    "counter",
    "sink_groups_total",
    "Groups that this process stored and acknowledged; a redelivered group counts again.",
    ("sink",),
)
SINK_TRAJECTORIES = Metric(
    "sink",
    "counter",
    "sink_trajectories_total",
    "Trajectories that this process added to its destination; duplicates are not counted.",
    ("sink",),
)
SINK_AGE_SECONDS = Metric(
    "sink",
    "histogram",
    "sink_age_seconds",
    "Staleness in time: seconds from the end of a trajectory until it is stored.",
    ("sink",),
    _AGE_S,
)

# --- the exporter: read from Redis at each scrape, for the whole deployment -----------------------

UP = Metric("exporter", "gauge", "redis_up", "1 while the exporter can read Redis.")
WORKERS = Metric("exporter", "gauge", "workers", "Workers whose heartbeat has not expired.")
SLOTS = Metric(
    "exporter",
    "gauge",
    "slots",
    "Slots of all live workers: leased (a trajectory has a lease) or free.",
    ("state",),
)
LANE_DEPTH = Metric(
    "exporter",
    "gauge",
    "lane_depth",
    "Messages waiting in the queues of a lane; queue: first, retry.",
    ("lane", "queue"),
)
LANE_AGE_SECONDS = Metric(
    "exporter",
    "gauge",
    "lane_age_seconds",
    "Seconds since the message of the longest waiting job of a lane was sent, of those at the "
    "heads of its queues; 0 = no job waits.",
    ("lane",),
)
LANE_BREAKER = Metric(
    "exporter",
    "gauge",
    "lane_paused",
    "1 while the circuit breaker of a lane is not closed.",
    ("lane",),
)
DELAYED = Metric(
    "exporter",
    "gauge",
    "delayed",
    "Jobs whose message is sent later (backoff, hand-back).",
)
RUNS = Metric(
    "exporter",
    "gauge",
    "runs",
    "Runs known to Redis, the newest 1,000; state: active, paused, cancelled, done.",
    ("state",),
)
TRAJECTORIES = Metric(
    "exporter",
    "counter",
    "trajectories_total",
    "Trajectories that became final, once each, regardless of attempts; outcome: scored, "
    "failed (no score), cancelled.",
    ("env", "outcome"),
)
FAILURES = Metric(
    "exporter",
    "counter",
    "failures_total",
    "Trajectories that ended without a score, once each, by the cause of the last attempt.",
    ("env", "cause"),
)
RETRIES = Metric(
    "exporter",
    "counter",
    "retries_total",
    "Failed attempts that were retried, by cause.",
    ("cause",),
)
LEASE_EXPIRIES = Metric(
    "exporter",
    "counter",
    "lease_expiries_total",
    "Trajectories queued again because their worker stopped renewing the lease.",
)
GROUPS = Metric(
    "exporter",
    "counter",
    "groups_total",
    "Groups that were closed, once each; outcome: published, dropped (by their policy).",
    ("env", "outcome"),
)
DEAD_LETTERS_TOTAL = Metric(
    "exporter",
    "counter",
    "dead_letters_total",
    "Trajectories that became dead letters, once each.",
    ("cause",),
)
DEAD_LETTERS = Metric(
    "exporter",
    "gauge",
    "dead_letters",
    "Current number of dead letters, including groups that could not be consumed.",
)
COST_USD = Metric(
    "exporter",
    "counter",
    "cost_usd_total",
    "US dollars of model calls, added when an attempt ends or is handed back, including retries. "
    "Attempts whose worker died are missing.",
)
UNPRICED = Metric(
    "exporter",
    "counter",
    "unpriced_attempts_total",
    "Attempts that used tokens of a model without a known price: their cost is in no total.",
)
TOKENS = Metric(
    "exporter",
    "counter",
    "tokens_total",
    "Prompt and completion tokens, added as `cost_usd_total` is.",
)
SANDBOXES = Metric(
    "exporter",
    "gauge",
    "sandboxes",
    "Sandboxes; state: starting (being created), running (their worker holds the lease), leaked "
    "(the lease has ended, the sandbox has not).",
    ("backend", "state"),
)
LIMIT = Metric(
    "exporter",
    "gauge",
    "limiter_calls",
    "Calls of a model endpoint in the whole fleet; state: limit (allowed at once now), leased (in "
    "flight), waiting.",
    ("endpoint", "model", "state"),
)
LIMIT_PAUSE = Metric(
    "exporter",
    "gauge",
    "limiter_pause_seconds",
    "Seconds until the endpoint is called again, as it requested; 0 = not paused.",
    ("endpoint", "model"),
)
LIMIT_ANSWERS = Metric(
    "exporter",
    "counter",
    "limiter_answers_total",
    "Calls as reported to the limiter; outcome: granted (permission given), refused (429), paused.",
    ("endpoint", "model", "outcome"),
)
STREAM_GROUPS = Metric("exporter", "gauge", "stream_groups", "Groups in the results stream.")
STREAM_BYTES = Metric(
    "exporter", "gauge", "stream_bytes", "Bytes of the bodies that wait for a reader."
)
CONSUMER_BEHIND = Metric(
    "exporter",
    "gauge",
    "consumer_behind_groups",
    "Groups in the stream that were not delivered to a consumer group yet.",
    ("group",),
)
CONSUMER_PENDING = Metric(
    "exporter",
    "gauge",
    "consumer_pending_groups",
    "Groups delivered to a consumer group and not acknowledged.",
    ("group",),
)
CONSUMER_AGE_SECONDS = Metric(
    "exporter",
    "gauge",
    "consumer_age_seconds",
    "Seconds since the publication of the oldest group that a consumer group has not acknowledged.",
    ("group",),
)

METRICS: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
