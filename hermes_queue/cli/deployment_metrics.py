"""Metrics of the whole deployment, read from Redis: `hermes-queue exporter`.

It only reads, so a Redis user without write permission suffices. Each scrape reads everything in
a few round trips, except for the scan of all keys for lanes and limits, which is done less often
because its cost grows with Redis.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hermes_queue.cli.overview import lane_now
from hermes_queue.errors import CAUSES, WIDE_CAUSES, RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.answers import ENDED
from hermes_queue.ledger.fleet.limiter import EndpointLimits
from hermes_queue.ledger.fleet.sandboxes import Sandboxes
from hermes_queue.ledger.fleet.tally import Totals, totals
from hermes_queue.queues import queue_name, retry_queue_name
from hermes_queue.results.consume import STREAM
from hermes_queue.results.consumers import lag_of
from hermes_queue.sandbox import known_backends
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Values
from hermes_queue.telemetry.metrics import Metric

Answer = tuple[Metric, Values]

_BINDING = "_kombu.binding."
_LIMIT_PARTS = (":leases", ":waiting", ":seen")
_MOST_RUNS = 1000
_MOST_UNREAD = 10_000
"""Of a consumer group: a scrape counts no further."""

_TOTALS: dict[str, Metric] = {
    "trajectories": metrics.TRAJECTORIES,
    "failures": metrics.FAILURES,
    "retries": metrics.RETRIES,
    "lease_expiries": metrics.LEASE_EXPIRIES,
    "groups": metrics.GROUPS,
    "dead_letters": metrics.DEAD_LETTERS_TOTAL,
    "cost_usd": metrics.COST_USD,
    "unpriced": metrics.UNPRICED,
    "tokens": metrics.TOKENS,
}


class Exporter:
    """Answers scrapes from one deployment's Redis. Thread-safe."""

    def __init__(self, ledger: Ledger, *, lanes: Sequence[str], scan_s: float) -> None:
        """Prepare; reads nothing.

        Args:
            ledger: the deployment.
            lanes: lanes to report even if Redis holds nothing about them.
            scan_s: interval between scans of all keys.
        """
        self._ledger = ledger
        self._client: Any = ledger.client
        self._configured_lanes = set(lanes)
        self._scan_s = scan_s
        self._scanned_at = -scan_s
        self._scan_lock = threading.Lock()
        self._queues: set[str] = set()
        self._limits: list[str] = []

    def values(self) -> Iterator[Answer]:
        """All metrics as of now; only `redis_up` 0 while Redis does not answer."""
        try:
            with explained(self._ledger.url):
                answers = list(self._read())
        except (RedisUnavailable, RedisFull):
            yield metrics.UP, {(): 0.0}
            return
        yield metrics.UP, {(): 1.0}
        yield from answers

    def targets(self) -> tuple[bytes, str]:
        """The workers' endpoints for Prometheus' `http_sd_configs`, and the content type.

        Raises:
            RedisUnavailable: Prometheus then keeps its known targets.
        """
        found = [
            {"targets": [worker["metrics"]], "labels": {"hermes_host": str(worker["host"])}}
            for worker in self._ledger.workers()
            if worker.get("metrics")
        ]
        return json.dumps(found).encode(), "application/json"

    def _read(self) -> Iterator[Answer]:
        seconds, micros = self._client.time()
        now = seconds + micros / 1e6
        self._scan()
        workers = self._ledger.workers()
        lanes = sorted(self._lanes(workers))
        yield metrics.WORKERS, {(): len(workers)}
        yield from self._read_slots(workers)
        yield from self._read_lanes(lanes, workers, now)
        yield from self._read_runs()
        yield from self._read_sandboxes(now)
        yield from self._read_limits()
        yield from self._read_consumers(now)
        yield from _counted(totals(self._ledger))

    # --- who is there -------------------------------------------------------------------------

    def _scan(self) -> None:
        """Scan all keys, unless that was done recently. One pass finds lanes and limits."""
        with self._scan_lock:
            if time.monotonic() - self._scanned_at < self._scan_s:
                return
            queues, limits = set(), []
            skip = len(self._ledger.prefix)
            for key in self._client.scan_iter(self._ledger.key("[l_]*"), count=1000):
                name = key[skip:].decode(errors="replace")
                if name.startswith("limit:") and not name.endswith(_LIMIT_PARTS):
                    limits.append(name.removeprefix("limit:"))
                elif name.startswith(_BINDING):
                    queues.add(name.removeprefix(_BINDING))
            self._queues, self._limits = queues, sorted(limits)
            self._scanned_at = time.monotonic()

    def _lanes(self, workers: Iterable[dict[str, Any]]) -> set[str]:
        prefix = queue_name("")
        retry = retry_queue_name("").removeprefix(prefix)
        of_queues = {
            queue.removeprefix(prefix).removesuffix(retry)
            for queue in self._queues
            if queue.startswith(prefix)
        }
        served = {str(lane) for worker in workers for lane in worker.get("lanes", ())}
        return self._configured_lanes | served | of_queues

    # --- what they do -------------------------------------------------------------------------

    def _read_slots(self, workers: Iterable[dict[str, Any]]) -> Iterator[Answer]:
        leased = self._client.zcard(self._ledger.key("leases"))
        slots = sum(int(worker.get("slots", 0)) for worker in workers)
        yield metrics.SLOTS, {("leased",): leased, ("free",): max(0, slots - leased)}

    def _read_lanes(
        self, names: Sequence[str], workers: Sequence[Mapping[str, Any]], now: float
    ) -> Iterator[Answer]:
        lanes = [lane_now(self._ledger, name, workers, now) for name in names]
        depth: dict[tuple[str, ...], float] = {}
        for lane in lanes:
            depth[lane.name, "first"] = lane.depth - lane.retries
            depth[lane.name, "retry"] = lane.retries
        yield metrics.LANE_DEPTH, depth
        yield metrics.LANE_AGE_SECONDS, {(i.name,): max(0.0, i.oldest_s or 0.0) for i in lanes}
        yield metrics.LANE_BREAKER, {(i.name,): float(i.breaker.state != "closed") for i in lanes}
        yield metrics.DELAYED, {(): self._client.zcard(self._ledger.key("delayed"))}

    def _read_runs(self) -> Iterator[Answer]:
        found = self._client.zrevrange(self._ledger.key("runs"), 0, _MOST_RUNS - 1)
        with self._client.pipeline(transaction=False) as pipe:
            for run_id in found:
                pipe.hmget(self._ledger.key(f"run:{run_id.decode()}"), "state", "total", *ENDED)
            raw = pipe.execute()
        states = Counter({"active": 0, "paused": 0, "cancelled": 0, "done": 0})
        for state, total, *ended in raw:
            if state is None:  # purged
                continue
            done = state != b"cancelled" and int(total or 0) <= sum(int(n or 0) for n in ended)
            states["done" if done else state.decode()] += 1
        yield metrics.RUNS, {(state,): count for state, count in states.items()}

    def _read_sandboxes(self, now: float) -> Iterator[Answer]:
        counts: Counter[tuple[str, ...]] = Counter()
        for record in Sandboxes(self._ledger).all():
            counts[record.backend, "running" if record.lease_s > 0 else "leaked"] += 1
        for backend in {*known_backends(), *(backend for backend, _ in counts)}:
            key = self._ledger.key(f"creation:{backend}:starting")
            counts[backend, "starting"] += self._client.zcount(key, now, "+inf")
            counts[backend, "running"] += 0
            counts[backend, "leaked"] += 0
        yield metrics.SANDBOXES, counts

    def _read_limits(self) -> Iterator[Answer]:
        limits = EndpointLimits(self._ledger)
        calls: dict[tuple[str, ...], float] = {}
        pauses: dict[tuple[str, ...], float] = {}
        answers: dict[tuple[str, ...], float] = {}
        for name in self._limits:
            state = limits.state(name)
            if state is None:
                continue
            endpoint, _, model = name.partition("|")
            pauses[endpoint, model] = state.pause_s
            for label, value in (
                ("limit", state.limit),
                ("leased", state.leased),
                ("waiting", state.waiting),
            ):
                calls[endpoint, model, label] = value
            for outcome in ("granted", "refused", "paused"):
                answers[endpoint, model, outcome] = getattr(state, outcome)
        yield metrics.LIMIT, calls
        yield metrics.LIMIT_PAUSE, pauses
        yield metrics.LIMIT_ANSWERS, answers

    # --- who reads the results ------------------------------------------------------------------

    def _read_consumers(self, now: float) -> Iterator[Answer]:
        stream = self._ledger.key(STREAM)
        yield metrics.STREAM_GROUPS, {(): self._client.xlen(stream)}
        size = self._client.get(self._ledger.key(f"{STREAM}:bytes"))
        yield metrics.STREAM_BYTES, {(): float(size or 0)}
        yield metrics.DEAD_LETTERS, {(): self._client.xlen(self._ledger.key("dead"))}
        unread: dict[tuple[str, ...], float] = {}
        pending: dict[tuple[str, ...], float] = {}
        ages: dict[tuple[str, ...], float] = {}
        groups = self._client.xinfo_groups(stream) if self._client.exists(stream) else []
        for group in groups:
            name = (group["name"].decode(),)
            lag = lag_of(self._client, stream, group, at_most=_MOST_UNREAD, now=now)
            unread[name], pending[name] = lag.behind, lag.pending
            ages[name] = lag.oldest_s or 0.0
        yield metrics.CONSUMER_BEHIND, unread
        yield metrics.CONSUMER_PENDING, pending
        yield metrics.CONSUMER_AGE_SECONDS, ages


def _counted(found: Totals) -> Iterator[Answer]:
    """The ledger's totals.

    Counters that may increase exist from the start: one that appears with its first increment
    has no rate.
    """
    values: dict[Metric, dict[tuple[str, ...], float]] = {m: {} for m in _TOTALS.values()}
    for cause in WIDE_CAUSES:
        values[metrics.RETRIES][cause,] = 0.0
    for cause in (name for name, row in CAUSES.items() if row.dead_letter):
        values[metrics.DEAD_LETTERS_TOTAL][cause,] = 0.0
    for metric in (metrics.LEASE_EXPIRIES, metrics.COST_USD, metrics.UNPRICED, metrics.TOKENS):
        values[metric][()] = 0.0
    for env in {key[1] for key in found if key[0] == "trajectories"}:
        for outcome in ("scored", "failed", "cancelled"):
            values[metrics.TRAJECTORIES][env, outcome] = 0.0
        for cause in WIDE_CAUSES:
            values[metrics.FAILURES][env, cause] = 0.0
    for (name, *labels), value in found.items():
        counter = _TOTALS.get(name)
        if counter and len(labels) == len(counter.labels):
            values[counter][tuple(labels)] = value
    yield from values.items()
