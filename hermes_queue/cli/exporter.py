"""`hermes-queue exporter`: metrics of the whole deployment, read from Redis, for Prometheus.

It only reads, so a Redis user without write permission suffices. Each scrape reads everything in
a few round trips, except for the scan of all keys for lanes and limits, which is done less often
because its cost grows with Redis.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click
import redis

from hermes_queue.cli.budget import read_budgets
from hermes_queue.cli.limits import read_engines, read_limits
from hermes_queue.cli.overview import lane_now
from hermes_queue.cli.sharing.measured import read_shares
from hermes_queue.cli.watch.scaling import wanted_slots
from hermes_queue.core import added
from hermes_queue.errors import CAUSES, WIDE_CAUSES, RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.fields import DRIFTED, LOST, TURNS, WORK
from hermes_queue.ledger.accounts.goodput import fleet_fields, goodput_of
from hermes_queue.ledger.answers import ENDED
from hermes_queue.ledger.fleet.flights import FLIGHT_PARTS
from hermes_queue.ledger.fleet.sandboxes import Sandboxes
from hermes_queue.ledger.fleet.tally import Tally, Totals, totals
from hermes_queue.queues import queue_name, retry_queue_name
from hermes_queue.results.consume import STREAM
from hermes_queue.results.consumers import lag_of
from hermes_queue.sandbox import known_backends
from hermes_queue.settings import MetricsSettings, WorkerSettings, check_environment
from hermes_queue.telemetry import logs, metrics
from hermes_queue.telemetry.endpoint import MetricsEndpoint
from hermes_queue.telemetry.meter import PrometheusMeter, Values
from hermes_queue.telemetry.metrics import Metric
from hermes_queue.telemetry.pages import NotNow
from hermes_queue.terminal.output import echo

logger = logging.getLogger(__name__)

MetricValues = tuple[Metric, Values]

_BINDING = "_kombu.binding."
_LIMIT_PARTS = (":leases", ":waiting", ":seen")
_MOST_RUNS = 1000
_GOODPUT_S = 3600
_MOST_UNREAD = 10_000
"""Of a consumer group: a scrape counts no further."""

_TOTALS: dict[str, Metric] = {
    "trajectories": metrics.TRAJECTORIES,
    "failures": metrics.FAILURES,
    "retries": metrics.RETRIES,
    "lease_expiries": metrics.LEASE_EXPIRIES,
    "junk_keys": metrics.JUNK_KEYS,
    "groups": metrics.GROUPS,
    "dead_letters": metrics.DEAD_LETTERS_TOTAL,
    "cost_usd": metrics.COST_USD,
    "unpriced": metrics.UNPRICED,
    "tokens": metrics.TOKENS,
}


@dataclass
class Exporter:
    """Answers scrapes from one deployment's Redis. Thread-safe."""

    ledger: Ledger
    lanes: Sequence[str]
    """Lanes to report even if Redis holds nothing about them."""
    scan_s: float
    """Interval between scans of all keys."""

    def __post_init__(self) -> None:
        self._client: Any = self.ledger.client
        self._scanned_at = -self.scan_s
        self._scan_lock = threading.Lock()
        self._queues: set[str] = set()
        self._limits: list[str] = []
        self._engines: list[str] = []
        self._of_plugins: list[Callable[[Ledger], Iterable[MetricValues]]]
        self._of_plugins = [*added("exported")]

    def values(self) -> Iterator[MetricValues]:
        """All metrics as of now; only `redis_up` 0 while Redis does not answer."""
        try:
            with explained(self.ledger.url):
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
            for worker in self.ledger.workers()
            if worker.get("metrics")
        ]
        return json.dumps(found).encode(), "application/json"

    def scaling(self) -> tuple[bytes, str]:
        """What a scaler of workers wants to know of each lane, as JSON, and the content type.

        Raises:
            NotNow: Redis does not answer; a scaler then leaves things as they are.
        """
        try:
            with explained(self.ledger.url):
                seconds, micros = self._client.time()
                self._scan()
                workers, now = self.ledger.workers(), seconds + micros / 1e6
                names = sorted(self._lanes(workers))
                lanes = [lane_now(self.ledger, name, workers, now) for name in names]
                wanted = wanted_slots(self.ledger, lanes, now)
        except (RedisUnavailable, RedisFull) as error:
            raise NotNow(str(error)) from error
        found = {
            lane.name: {
                "waiting": lane.depth,
                "running": lane.running,
                "workers": lane.workers,
                "paused": lane.breaker.state != "closed",
                "wanted_slots": wanted[lane.name],
            }
            for lane in lanes
        }
        return json.dumps({"lanes": found}).encode(), "application/json"

    def _read(self) -> Iterator[MetricValues]:
        seconds, micros = self._client.time()
        now = seconds + micros / 1e6
        self._scan()
        workers = self.ledger.workers()
        lanes = sorted(self._lanes(workers))
        yield metrics.WORKERS, {(): len(workers)}
        for part in (
            self._read_slots(workers),
            self._read_lanes(lanes, workers, now),
            self._read_runs(),
            self._read_sandboxes(now),
            read_limits(self.ledger, self._limits),
            read_engines(self.ledger, self._engines),
            self._read_consumers(now),
            _counted(totals(self.ledger)),
            read_goodput(self.ledger, now),
            read_budgets(self.ledger),
            *(read(self.ledger) for read in self._of_plugins),
        ):
            yield from _whole(part)

    def _scan(self) -> None:
        """Scan all keys, unless that was done recently. One pass finds lanes and limits."""
        with self._scan_lock:
            if time.monotonic() - self._scanned_at < self.scan_s:
                return
            queues, limits, engines = set(), [], []
            skip = len(self.ledger.prefix)
            for key in self._client.scan_iter(self.ledger.key("[fl_]*"), count=1000):
                name = key[skip:].decode(errors="replace")
                if name.startswith("limit:") and not name.endswith(_LIMIT_PARTS):
                    limits.append(name.removeprefix("limit:"))
                elif name.startswith("flights:") and not name.endswith(FLIGHT_PARTS):
                    engines.append(name.removeprefix("flights:"))
                elif name.startswith(_BINDING):
                    queues.add(name.removeprefix(_BINDING))
            self._queues, self._limits, self._engines = queues, sorted(limits), sorted(engines)
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
        return {*self.lanes, *served, *of_queues}

    def _read_slots(self, workers: Iterable[dict[str, Any]]) -> Iterator[MetricValues]:
        leased = self._client.zcard(self.ledger.key("leases"))
        slots = sum(worker.get("slots", 0) for worker in workers)
        yield metrics.SLOTS, {("leased",): leased, ("free",): max(0, slots - leased)}

    def _read_lanes(
        self, names: Sequence[str], workers: Sequence[Mapping[str, Any]], now: float
    ) -> Iterator[MetricValues]:
        lanes = [lane_now(self.ledger, name, workers, now) for name in names]
        depth: dict[tuple[str, ...], float] = {}
        for lane in lanes:
            depth[lane.name, "first"] = lane.depth - lane.retries
            depth[lane.name, "retry"] = lane.retries
        yield metrics.LANE_DEPTH, depth
        yield metrics.LANE_AGE_SECONDS, {(i.name,): max(0.0, i.oldest_s or 0.0) for i in lanes}
        yield metrics.LANE_BREAKER, {(i.name,): float(i.breaker.state != "closed") for i in lanes}
        yield metrics.LANE_ENDPOINTS_HELD, {(i.name,): float(len(i.endpoints)) for i in lanes}
        wanted = wanted_slots(self.ledger, lanes, now)
        yield metrics.LANE_WANTED, {(name,): slots for name, slots in wanted.items()}
        yield from read_shares(self.ledger)
        yield metrics.DELAYED, {(): self._client.zcard(self.ledger.key("delayed"))}
        yield metrics.REMEMBERED_TASKS, {(): self._client.zcard(self.ledger.key("tasks"))}

    def _read_runs(self) -> Iterator[MetricValues]:
        found = self._client.zrevrange(self.ledger.key("runs"), 0, _MOST_RUNS - 1)
        with self._client.pipeline(transaction=False) as pipe:
            for run_id in found:
                key = self.ledger.key(f"run:{run_id.decode(errors='replace')}")
                pipe.hmget(key, "state", "total", *ENDED)
            raw = pipe.execute(raise_on_error=False)
        states = Counter({"active": 0, "paused": 0, "cancelled": 0, "done": 0})
        for each in raw:
            if state := _state_of(each):
                states[state] += 1
        yield metrics.RUNS, {(state,): count for state, count in states.items()}

    def _read_sandboxes(self, now: float) -> Iterator[MetricValues]:
        counts: Counter[tuple[str, ...]] = Counter()
        for record in Sandboxes(self.ledger).all():
            counts[record.backend, "running" if record.lease_s > 0 else "leaked"] += 1
        for backend in {*known_backends(), *(backend for backend, _ in counts)}:
            key = self.ledger.key(f"creation:{backend}:starting")
            counts[backend, "starting"] += self._client.zcount(key, now, "+inf")
            counts[backend, "running"] += 0
            counts[backend, "leaked"] += 0
        yield metrics.SANDBOXES, counts

    def _read_consumers(self, now: float) -> Iterator[MetricValues]:
        stream = self.ledger.key(STREAM)
        yield metrics.STREAM_GROUPS, {(): self._client.xlen(stream)}
        size = self._client.get(self.ledger.key(f"{STREAM}:bytes"))
        yield metrics.STREAM_BYTES, {(): float(size or 0)}
        yield metrics.DEAD_LETTERS, {(): self._client.xlen(self.ledger.key("dead"))}
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


def _whole(part: Iterable[MetricValues]) -> list[MetricValues]:
    """What a part says; nothing if somebody has put another type in the place of a key of it."""
    try:
        return list(part)
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        extra = {"action": "metrics_left_out"}
        logger.warning("some metrics are left out: a key holds the wrong type", extra=extra)
        return []


def _state_of(answer: Any) -> str:
    """The state of a run by its fields; "" if it is purged, or not as we write it."""
    if isinstance(answer, redis.ResponseError):
        return ""
    if isinstance(answer, Exception):
        raise answer
    state, *counts = answer
    try:
        total, *ended = (int(count or 0) for count in counts)
    except ValueError:
        return ""
    if state in (b"active", b"paused") and total <= sum(ended):
        return "done"
    return state.decode() if state in (b"active", b"paused", b"cancelled") else ""


def _counted(found: Totals) -> Iterator[MetricValues]:
    """The ledger's totals. A counter that appeared with its first increment would have no rate."""
    values: dict[Metric, dict[tuple[str, ...], float]]
    values = {each: {} if each.labels else {(): 0.0} for each in _TOTALS.values()}
    for cause in WIDE_CAUSES:
        values[metrics.RETRIES][cause,] = 0.0
    for cause in (name for name, row in CAUSES.items() if row.dead_letter):
        values[metrics.DEAD_LETTERS_TOTAL][cause,] = 0.0
    for env in {key[1] for key in found if key[0] == "trajectories"}:
        for outcome in ("scored", "unscored", "failed", "cancelled"):
            values[metrics.TRAJECTORIES][env, outcome] = 0.0
        for cause in WIDE_CAUSES:
            values[metrics.FAILURES][env, cause] = 0.0
    for (name, *labels), value in found.items():
        counter = _TOTALS.get(name)
        if counter and len(labels) == len(counter.labels):
            values[counter][tuple(labels)] = value
    yield from values.items()


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 = any free one.  [default: 9808]",
)
@click.option("--address", help="Address to listen on.  [default: 127.0.0.1]")
def exporter(port: int | None, address: str | None) -> None:
    """Serve metrics of the whole deployment from Redis, until stopped.

    /metrics is for Prometheus to scrape; /targets lists the endpoints of all live workers for
    its http_sd_configs; /scaling has the slots that each lane wants, for whoever scales workers.
    One exporter per deployment is enough. It only reads, and waits out outages of Redis.
    """
    check_environment()
    logs.configure()
    settings = MetricsSettings()
    lanes = [lane for part in WorkerSettings().lanes.split(",") if (lane := part.strip())]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with closing(Ledger.connect()) as ledger:
        source = Exporter(ledger, lanes=lanes, scan_s=settings.scan_s)
        meter = PrometheusMeter(
            "exporter", max_label_values=settings.max_label_values, values=source.values
        )
        endpoint = MetricsEndpoint(
            {
                "/metrics": meter.exposition,
                "/targets": source.targets,
                "/scaling": source.scaling,
            },
            address=address or settings.address,
            port=settings.exporter_port if port is None else port,
            setting="HERMES_QUEUE_METRICS_EXPORTER_PORT",
        )
        echo(f"http://{endpoint.target()}/metrics")
        with closing(endpoint):
            stop.wait()


def read_goodput(ledger: Ledger, now: float) -> Iterator[MetricValues]:
    """Accounts of the deployment over its life, and its goodput during the last hour.

    `now`: Unix seconds of Redis' clock. Raises RedisUnavailable.
    """
    fields = fleet_fields(ledger)
    good = goodput_of(fields)
    for metric, kind, names in (
        (metrics.SLOT_SECONDS, "s", (*WORK, "death")),
        (metrics.LOST_SLOT_SECONDS, "l", LOST),
    ):
        sums: dict[tuple[str, ...], float] = {(name,): 0.0 for name in names}
        for name, value in fields.items():
            of, _, account = name.partition("|")
            if of == kind:
                sums[account,] = value
        yield metric, sums
    breaks = {name: n for name, n in good.drift.items() if name not in (TURNS, DRIFTED)}
    yield metrics.CONTINUED, {(): good.drift.get(TURNS, 0.0)}
    reasons: dict[tuple[str, ...], float] = {("reply",): 0.0}
    yield metrics.DRIFT, reasons | {(name,): n for name, n in breaks.items()}
    yield metrics.SANDBOX_USD, {(): sum(good.slot_usd.values())}
    yield metrics.TOKENS_LOST, {(): good.tokens_thrown_away}
    lately = goodput_of(Tally(ledger).lately(_GOODPUT_S, now=now).accounts)
    per = {"slot_hour": lately.per_slot_hour, "usd": lately.per_usd}
    yield metrics.GOODPUT, {(name,): value for name, value in per.items() if value is not None}
