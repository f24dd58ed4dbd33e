"""Resources shared by one worker process: ledger, backend, spool, and its running jobs.

`workers.lifecycle` opens them once, on the pool's loop; the task reads them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.broker.pool import RunningTask
from hermes_queue.errors import RedisFull, RedisUnavailable, StoreUnavailable, TrajectoryFailure
from hermes_queue.keyspace.calls import PIPELINE_BYTES, ScriptCall
from hermes_queue.ledger import ACCEPTED, Claim, DeadLetters, Ledger, PublishVerdict
from hermes_queue.ledger.tasks import Observation, Observations
from hermes_queue.models import AttemptRecord, Message, ScoredTrajectory
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.settings import (
    LeaseSettings,
    ModelSettings,
    ResultSettings,
    ResumeSettings,
    RetrySettings,
    StageSettings,
    StoreSettings,
    TaskMemorySettings,
    WorkerSettings,
)
from hermes_queue.telemetry import logs
from hermes_queue.telemetry.meter import Meter
from workers.attempt import Services
from workers.batches import Batches
from workers.bodies import Bodies
from workers.bounds.limits import StageLimits
from workers.calls.admission import FlightLimiter
from workers.calls.fleet_limiter import FleetLimiter
from workers.calls.flights import FleetFlights
from workers.draft import Draft
from workers.goodput.reports import SlotReports
from workers.intake.ready import ReadyNeeds
from workers.spool import Spool, SpooledRecord
from workers.stages.places import StagePlaces
from workers.upkeep import metering
from workers.upkeep.counts import Outcomes, ProcessTally
from workers.upkeep.log_tail import LogTail

if TYPE_CHECKING:
    from workers.tracing.tracer import Tracer  # loaded only if there is one

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MakeRecord = Callable[[], tuple[str, bytes]]
"""Makes a record: its trajectory id and its encoding."""

_RECORDS_AT_ONCE = 64
_REDIS_RETRY_S = 0.5
_STORE_RETRY_S = 2.0
_PAUSE_POLL_S = 0.5
_UPLOADS = 4
"""Concurrent uploads to the store, in threads of their own: a store that hangs delays no others."""


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """Progress of one attempt."""

    stage: str
    since: float
    """Time at which its lease was taken, on the monotonic clock."""
    lane: str = ""
    label: str = ""
    """Label for people: `env:instance#sample`."""
    turns: int = 0
    attempt: int = 1
    messages: Sequence[Message] = ()
    """The transcript itself, to which the event loop only adds."""
    overdue_s: float = 0.0
    """Seconds since its stage should have ended."""
    is_finished: bool = False
    """Whether its record exists, which is published whatever becomes of the lease."""


class Pauses:
    """The paused runs, as of the last beat, of which this process holds leases. Thread-safe."""

    def __init__(self) -> None:
        self._runs: frozenset[str] = frozenset()

    def replace(self, run_ids: frozenset[str]) -> frozenset[str]:
        """Set the paused runs; returns those that were not paused before."""
        # One assignment of a new set: the event loop reads it without a lock.
        fresh, self._runs = run_ids - self._runs, run_ids
        return fresh

    async def over(self, run_id: str) -> None:
        """Return once the run is not paused."""
        while run_id in self._runs:  # noqa: ASYNC110 - set by a thread, on no loop
            await asyncio.sleep(_PAUSE_POLL_S)


class PerSecond:
    """Lets something happen `per_s` times a second, saved up for one second. For one thread."""

    def __init__(self, per_s: float) -> None:
        self._per_s = self._left = per_s
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether it may happen once more now."""
        now = time.monotonic()
        most = max(1.0, self._per_s)
        self._left = min(most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True)
class Runtime:
    """Process-wide resources of a worker."""

    owner: str
    """Random per process start: a lease of an earlier process is never mistaken for ours."""
    ledger: Ledger
    backend: SandboxBackend
    spool: Spool
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    resume: ResumeSettings = field(default_factory=ResumeSettings)
    stages: StageSettings = field(default_factory=StageSettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    host: str = field(default_factory=socket.gethostname)
    executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(8, thread_name_prefix="ledger")
    )
    bodies: Bodies = field(
        default_factory=lambda: Bodies(None, StoreSettings(), ResultSettings().inline_max_bytes)
    )
    """Stores large bodies of records."""
    uploads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_UPLOADS, thread_name_prefix="store")
    )
    outcomes: Outcomes = field(default_factory=Outcomes)
    tally: ProcessTally = field(default_factory=ProcessTally)
    tasks: Observations | None = field(
        default_factory=lambda: Observations() if TaskMemorySettings().enabled else None
    )
    """What ended trajectories say of their tasks; None = nobody wants to know."""
    slots: SlotReports = field(default_factory=SlotReports)
    pauses: Pauses = field(default_factory=Pauses)
    ready: ReadyNeeds = field(default_factory=ReadyNeeds)
    limiter: FleetLimiter | None = None
    """Counts model calls over all workers; None = they are not counted."""
    flights: FleetFlights | None = None
    """Counts trajectories in flight at model engines; None = they are not counted."""
    places: StagePlaces | None = None
    """Of stages; None = none is limited."""
    log: LogTail = field(default_factory=LogTail)
    meter: Meter = field(default_factory=Meter)
    tracer: Tracer | None = None
    """Traces attempts; None = they are not traced."""
    stage_events: PerSecond = field(
        default_factory=lambda: PerSecond(WorkerSettings().stage_events_per_s)
    )
    """Trajectories that may report all their stages to Flower: an event costs Flower and the worker
    about as much as a whole trajectory that does nothing."""
    _calls: Batches[ScriptCall[Any], Any] = field(init=False)
    _records: Batches[MakeRecord, SpooledRecord | None] = field(init=False)
    _running: dict[Claim, RunningTask] = field(default_factory=dict)
    _progress: dict[Claim, Callable[[], AttemptProgress]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._calls = Batches(
            self.executor, self._make_calls, most=PIPELINE_BYTES, weight=lambda call: call.weight
        )
        self._records = Batches(self.executor, self._keep_made, most=_RECORDS_AT_ONCE)

    @contextmanager
    def leased(
        self, claim: Claim, task: RunningTask, progress: Callable[[], AttemptProgress]
    ) -> Iterator[None]:
        """Have the lease renewed while the block runs; `progress` is called for reports."""
        with self._lock:
            self._running[claim] = task
            self._progress[claim] = progress
        try:
            with logs.about(claim.trajectory_id):
                yield
        finally:
            self.settle(claim)

    def settle(self, claim: Claim) -> None:
        """Stop renewing a lease: the trajectory is final or handed back. Thread-safe."""
        with self._lock:
            self._running.pop(claim, None)
            self._progress.pop(claim, None)

    def running(self) -> dict[Claim, RunningTask]:
        """Return leased trajectories and the pool's jobs that run them. Thread-safe snapshot."""
        with self._lock:
            return dict(self._running)

    def progress(self) -> dict[Claim, AttemptProgress]:
        """Return the progress of each leased trajectory. Thread-safe."""
        with self._lock:
            return {claim: progress() for claim, progress in self._progress.items()}

    def report_log(self, ledger: Ledger) -> None:
        """Store new lines of our log in the ledger, for dead letters. Thread-safe; blocks.

        Raises:
            RedisUnavailable, RedisFull: repeat the call.
        """
        if news := self.log.news():
            DeadLetters(ledger).keep_log(self.owner, news)
            self.log.reported(news)

    @property
    def services(self) -> Services:
        """What all attempts of this worker share."""
        bounds = StageLimits.of(self.worker)
        return Services(self.backend, self.model, self.worker.imports, bounds)

    @property
    def model_calls(self) -> Limiter:
        """The limiter that permits agents' calls of models."""
        return metering.MeteredLimiter(self.limiter or Unlimited(), self.meter)

    def calls_of(self, trajectory_id: str) -> Limiter:
        """`model_calls` for one trajectory, which its engine has to have room for."""
        calls = self.model_calls
        return FlightLimiter(calls, self.flights, trajectory_id) if self.flights else calls

    def watch(self, draft: Draft) -> None:
        """Have an attempt that begins traced, if any are."""
        if self.tracer is not None:
            self.tracer.watch(draft)

    def trace_end(self, draft: Draft, failure: TrajectoryFailure | None) -> None:
        """Trace the end of an attempt; the first call counts."""
        if self.tracer is not None:
            self.tracer.ended(draft, failure)

    def left(self, draft: Draft | None) -> None:
        """Trace the end of an attempt that this worker has to do with no longer."""
        if self.tracer is not None and draft is not None:
            self.tracer.left(draft)

    def ended(self, draft: Draft, failure: TrajectoryFailure | None) -> None:
        """Record the end of an attempt for the lane's breaker, `status` and metrics."""
        self.outcomes.note(draft.lane, draft.job, failure)
        self.tally.attempt(failure.cause if failure else "")
        metering.attempt_ended(self.meter, draft, failure)
        self.trace_end(draft, failure)

    def published(self, record: ScoredTrajectory, verdict: PublishVerdict) -> None:
        """Record Redis' answer to the publication of a record. Thread-safe."""
        self.tally.published(record.run_id, verdict)
        if self.tasks and verdict in ACCEPTED:
            self.tasks.note(Observation.of(record))
        metering.published(self.meter, record, verdict)
        if self.tracer is not None:
            self.tracer.published(record, verdict)

    async def given_back(
        self, call: ScriptCall[bool], draft: Draft | None, failed: AttemptRecord | None
    ) -> None:
        """Hand a job back by `call`, and account for its lease."""
        if await self.answered(call):
            self.slots.given_back(draft, failed)

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a thread."""
        return await _in(self.executor, partial(call, *args, **kwargs))

    async def until_redis_answers(
        self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a ledger call; while Redis is away or full, wait and repeat it.

        Ledger calls are safe to repeat, so an answer lost on the way does no harm.
        """
        return await self._patiently(lambda: _in(self.executor, partial(call, *args, **kwargs)))

    async def answered(self, call: ScriptCall[T], *, or_full: bool = False) -> T:
        """The result of a ledger call; while Redis is away or full, wait and repeat it.

        It travels with the calls of other trajectories that are ready in the same moment, and is
        confirmed by replicas if that is set. `or_full`: raise RedisFull if it was surely not made.
        """
        # So that log lines about the answer name the trajectory.
        within = call.within(contextvars.copy_context(), self.bodies.confirm)
        result: T = await self._patiently(lambda: self._calls.put(within), or_full=or_full)
        return result

    async def once(self, call: ScriptCall[T]) -> T:
        """The result of a ledger call that may be left undone.

        Raises:
            RedisUnavailable: it may have been made.
            RedisFull: the same.
        """
        result: T = await self._calls.put(call.within(contextvars.copy_context()))
        return result

    def _make_calls(self, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        return self.ledger.make_all(calls)

    def spooled(self, make: MakeRecord) -> asyncio.Future[SpooledRecord | None]:
        """Make a record in a thread and store it durably, even if the future is cancelled.

        The result is None if the disk does not take it. Records of other trajectories that are
        ready in the same moment are stored with it.
        """
        return self._records.put(partial(contextvars.copy_context().run, make))

    def _keep_made(self, makes: Sequence[MakeRecord]) -> list[SpooledRecord | BaseException | None]:
        made: list[tuple[str, bytes] | BaseException] = []
        for make in makes:
            try:
                made.append(make())
            except BaseException as error:  # noqa: BLE001 - that of this record alone
                made.append(error)
        kept = iter(self.keep([each for each in made if isinstance(each, tuple)]))
        return [next(kept) if isinstance(each, tuple) else each for each in made]

    def keep(self, records: Sequence[tuple[str, bytes]]) -> list[SpooledRecord | None]:
        """Store records (trajectory id, encoding) on disk; None for one that it does not take."""
        kept: list[SpooledRecord | None] = []
        for (name, _), result in zip(records, self.spool.put_all(records), strict=True):
            if isinstance(result, OSError):
                extra = {"action": "spool_failed", "trajectory_id": name}
                logger.error("spool: %s; %s is published from memory", result, name, extra=extra)
            kept.append(None if isinstance(result, OSError) else result)
        return kept

    async def stored(self, record: ScoredTrajectory, body: bytes) -> bytes:
        """Return what Redis shall hold: the body, or, once it is in the store, its claim.

        While the store or Redis is away, wait and repeat the call.
        """
        if not self.bodies.is_large(body):
            return body
        call = partial(self.bodies.stored, self.ledger, record, body)
        return await self._patiently(lambda: _in(self.uploads, call))

    async def _patiently(self, call: Callable[[], Awaitable[T]], *, or_full: bool = False) -> T:
        warned = ""
        while True:
            try:
                return await call()
            except (RedisUnavailable, RedisFull) as error:
                if or_full and not warned and isinstance(error, RedisFull):
                    raise
                if warned != "Redis":
                    logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
                warned, retry_s = "Redis", _REDIS_RETRY_S
            except StoreUnavailable as error:
                if warned != "store":
                    extra = {"action": "store_wait"}
                    logger.warning("waiting for the store: %s", error, extra=extra)
                warned, retry_s = "store", _STORE_RETRY_S
            await asyncio.sleep(retry_s)


async def _in(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    context = contextvars.copy_context()  # so that its log lines name the trajectory
    return await asyncio.get_running_loop().run_in_executor(threads, partial(context.run, call))


_runtime: Runtime | None = None


def install(runtime: Runtime | None) -> None:
    """Set the process's runtime, or clear it with None."""
    global _runtime
    _runtime = runtime


def get() -> Runtime:
    """Return the process's runtime.

    Raises:
        RuntimeError: the task runs outside a properly started worker.
    """
    if _runtime is None:
        raise RuntimeError("no runtime: start workers with `celery -A hermes_queue worker`")
    return _runtime
