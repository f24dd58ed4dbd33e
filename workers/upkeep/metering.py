"""A worker's Prometheus metrics: attempts as they end, model calls as they are answered.

These count what this process did. Figures of the deployment that must survive any process
(trajectories, costs) are counted in Redis and served by the exporter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from hermes_queue.agent.endpoint.limiter import Limiter, ObservedPermit, Permit
from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import ACCEPTED, PublishVerdict
from hermes_queue.ledger.tasks.observed import flipped
from hermes_queue.models import ScoredTrajectory, Usage
from hermes_queue.settings import MetricsSettings
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Meter, PrometheusMeter, Values
from hermes_queue.telemetry.pages import Page
from workers.draft import Draft

if TYPE_CHECKING:
    from hermes_queue.telemetry.endpoint import MetricsEndpoint


def serve(
    slots: Callable[[], int],
    stages: Callable[[], Iterable[str]],
    settings: MetricsSettings,
    pages: Mapping[str, Page],
) -> tuple[Meter, MetricsEndpoint] | None:
    """Open this worker's endpoint, if the settings give it a port.

    `slots` returns the most trajectories at once, `stages` the stages of those that run now;
    `pages` are served besides the metrics.

    Raises:
        ConfigurationError: the port is taken, or `prometheus_client` is missing.
    """
    if settings.worker_port is None:
        return None
    from hermes_queue.telemetry.endpoint import MetricsEndpoint  # a web server

    values = partial(slot_values, slots, stages)
    meter = PrometheusMeter("worker", max_label_values=settings.max_label_values, values=values)
    endpoint = MetricsEndpoint(
        {"/metrics": meter.exposition, **pages},
        address=settings.address,
        port=settings.worker_port,
        ports=settings.worker_ports,
        setting="HERMES_QUEUE_METRICS_WORKER_PORT",
    )
    return meter, endpoint


def slot_values(
    slots: Callable[[], int], stages: Callable[[], Iterable[str]]
) -> Iterable[tuple[metrics.Metric, Values]]:
    """The worker's gauges; `slots` and `stages` as for `serve`."""
    leased = Counter(stages())
    free = max(0, slots() - leased.total())
    yield (
        metrics.WORKER_SLOTS,
        {("free",): free, **{(stage,): count for stage, count in leased.items()}},
    )


def attempt_ended(meter: Meter, draft: Draft, failure: TrajectoryFailure | None) -> None:
    """Count an attempt that has ended, measured or with a failure."""
    env = draft.job.env
    ended = failure.cause if failure else "measured"
    meter.add(metrics.ATTEMPTS, {"env": env, "outcome": ended})
    is_whole = not (draft.is_handed and failure)  # else the agent's part counts with another one
    of_stages = draft.stage_seconds if is_whole else draft.clock.stage_seconds
    for stage, seconds in of_stages.items():
        meter.observe(metrics.STAGE_SECONDS, {"env": env, "stage": stage}, seconds)
    calls = draft.agent.tool_calls
    by_outcome = {
        "ok": calls.ok,
        "error": calls.error,
        "not_run": calls.schema_valid - calls.ok - calls.error,
        "invalid": calls.attempted - calls.schema_valid,
    }
    for outcome, count in by_outcome.items():
        if count > 0 and is_whole:
            meter.add(metrics.TOOL_CALLS, {"env": env, "outcome": outcome}, count)


def resumed(meter: Meter, env: str, kept: Usage | None) -> None:
    """Count an attempt that continues turns of an earlier one; `None` = it had to begin anew."""
    meter.add(metrics.RESUMPTIONS, {"env": env, "outcome": "anew" if kept is None else "resumed"})
    if kept is not None:
        tokens = {"prompt": kept.prompt_tokens, "completion": kept.completion_tokens}
        for kind, count in tokens.items():
            meter.add(metrics.RESUMED_TOKENS, {"env": env, "kind": kind}, count)


def handed(meter: Meter, env: str, outcome: str) -> None:
    """Count work that was handed over to be graded, was not, or is lost."""
    meter.add(metrics.HANDOVERS, {"env": env, "outcome": outcome})


def snapshot(meter: Meter, size_bytes: int | None, took_s: float) -> None:
    """Count a copy of a slot's files; `None` = there could be none."""
    meter.add(metrics.SNAPSHOTS, {"outcome": "none" if size_bytes is None else "kept"})
    if size_bytes is not None:
        meter.observe(metrics.SNAPSHOT_SECONDS, {}, took_s)
        meter.add(metrics.SNAPSHOT_BYTES, {}, size_bytes)


def published(meter: Meter, record: ScoredTrajectory, verdict: PublishVerdict) -> None:
    """Count a record by its publication, if Redis accepted it.

    A publication whose answer was lost is repeated and then answered `final`: it is missing
    here, but not in the exporter's totals.
    """
    if verdict == "unknown":
        forgotten(meter, "record")
    if verdict not in ACCEPTED:
        return
    meter.add(metrics.STOPS, {"env": record.env, "reason": record.stop_reason})
    if record.score is not None:
        meter.observe(metrics.SCORE, {"env": record.env}, record.score)
    if (changed := flipped(record)) is not None:
        outcome = "changed" if changed else "same"
        meter.add(metrics.REGRADES, {"env": record.env, "outcome": outcome})
    if record.status != "failed":
        meter.observe(metrics.TURNS, {"env": record.env}, len(record.turns))


def forgotten(meter: Meter, what: str) -> None:
    """Count a "delivery" or a finished "record" of a trajectory that Redis does not know."""
    meter.add(metrics.FORGOTTEN, {"what": what})


class MeteredLimiter:
    """A limiter that counts calls when they end."""

    def __init__(self, limiter: Limiter, meter: Meter) -> None:
        self._limiter = limiter
        self._meter = meter

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        """See `Limiter.slot`."""
        labels = {"endpoint": endpoint, "model": model}
        async with self._limiter.slot(
            endpoint, model, estimate_tokens=estimate_tokens, delay_s=delay_s
        ) as permit:
            metered, began = ObservedPermit(permit, permit.waited_s), time.monotonic()
            self._meter.observe(metrics.MODEL_WAIT_SECONDS, labels, permit.waited_s)
            try:
                yield metered
            finally:
                duration_s = time.monotonic() - began
                self._meter.add(metrics.MODEL_CALLS, {**labels, "outcome": metered.outcome})
                if metered.outcome == "ok":
                    self._meter.observe(metrics.MODEL_SECONDS, labels, duration_s)
                    self._count_tokens(metered.usage, labels)

    def _count_tokens(self, usage: Usage, labels: dict[str, str]) -> None:
        tokens = {
            "prompt": usage.prompt_tokens,
            "completion": usage.completion_tokens,
            "cached": usage.cached_tokens,
        }
        for kind, count in tokens.items():
            if count > 0:
                self._meter.add(metrics.MODEL_TOKENS, {**labels, "kind": kind}, count)
