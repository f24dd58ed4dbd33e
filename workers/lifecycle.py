"""Start and stop of a worker process, under a bare `celery -A hermes_queue worker`.

Hooked into the pool: resources of tasks are opened on the pool's loop before the first task and
closed after the last one. SIGTERM is Celery's warm shutdown: intake stops, the pool lets running
trajectories finish for `WorkerSettings.soft_shutdown_s` and then cancels the rest, which hand
their jobs back to the ledger.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

from hermes_queue.agent.endpoint import probe
from hermes_queue.agent.endpoint.choice import OwnEndpoints
from hermes_queue.agent.prices import read_prices
from hermes_queue.broker import pool
from hermes_queue.broker.pool import remote_control
from hermes_queue.broker.pool.intake import INTAKE, shutdown_is_ordered
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.cancelling import cancel_tasks
from hermes_queue.ledger.fleet.creations import FleetCreationGate
from hermes_queue.ledger.fleet.snapshots import FleetSnapshots
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.host import descriptors
from hermes_queue.settings import (
    EngineSettings,
    LimiterSettings,
    MetricsSettings,
    ModelSettings,
    OtelSettings,
    PathSettings,
    SandboxSettings,
    WorkerSettings,
)
from workers import runtime as runtimes
from workers.bodies import Bodies
from workers.calls.fleet_limiter import FleetLimiter
from workers.calls.flights import FleetFlights
from workers.calls.shared_probes import SharedProbes
from workers.resume.unneeded import UnneededSnapshots
from workers.runtime import Runtime
from workers.spool import Spool
from workers.stages.places import StagePlaces
from workers.upkeep import metering
from workers.upkeep.ahead import AheadPreparation
from workers.upkeep.beat import Beat, Health, oldest
from workers.upkeep.inventory import Inventory
from workers.upkeep.keeper import Keeper
from workers.upkeep.reaper import Reaper
from workers.upkeep.recovery import publish_leftovers
from workers.upkeep.transcripts import LiveTranscripts

logger = logging.getLogger(__name__)

_opened = AsyncExitStack()
"""All that is closed when the loop stops, in reverse order."""


async def open_runtime() -> None:
    """Open backend, ledger, spool and metrics; start the keeper. Runs on the pool's loop.

    Raises:
        ConfigurationError: the port for metrics cannot be opened, Redis deletes keys when full, or
            the table of prices is wrong.
        IsolationUnavailable: this machine cannot isolate slots.
        RedisUnavailable: Redis does not answer at start.
    """
    global _opened
    read_prices(ModelSettings().prices)  # else every trajectory would find out that it is wrong
    async with AsyncExitStack() as opened:
        await _open(opened)
        _opened = opened.pop_all()
    spare_collector()


def spare_collector() -> None:
    """Keep the garbage collector away from what the start has made, which lives to the end.

    It would look through all modules again and again: a tenth of the CPU time of a trajectory that
    does nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def close_runtime() -> None:
    """Stop the keeper, free slots and sandboxes, close connections. Idempotent."""
    global _opened
    opened, _opened = _opened, AsyncExitStack()
    await opened.aclose()


async def _open(opened: AsyncExitStack) -> None:
    owner = f"{os.uname().nodename}-{secrets.token_hex(6)}"
    ledger = Ledger.connect()
    opened.callback(ledger.close)
    ledger.refuse_eviction()
    _raise_descriptor_limit()
    deployment = ledger.deployment_id()
    spool = Spool(PathSettings().spool_dir, deployment, owner)
    opened.callback(spool.close)
    task_pool, name = pool.TaskPool.instance(), SandboxSettings().backend
    inventory = Inventory(ledger, name)
    opened.push_async_callback(_report_ended, inventory, ledger)
    backend = make_backend(
        name,
        slots=task_pool.limit,
        labels={"deployment": deployment, "worker": owner},
        fleet=Fleet(inventory, FleetCreationGate(ledger, name), FleetSnapshots(ledger)),
    )
    bodies = Bodies.from_settings(ledger.url)
    runtime = Runtime(owner=owner, ledger=ledger, backend=backend, spool=spool, bodies=bodies)
    # The threads end after the backend: a job that lived on until its sandbox is gone has to hand
    # its lease back and to store its record.
    opened.callback(runtime.executor.shutdown, wait=False)
    opened.callback(runtime.uploads.shutdown, wait=False, cancel_futures=True)
    await backend.start()
    opened.push_async_callback(backend.stop)
    opened.push_async_callback(_close_model_clients)
    _open_limits(runtime, opened)
    if places := _places(ledger.url, task_pool):
        runtime.places = places
        opened.push_async_callback(places.close)
    health = Health(runtime)
    metrics = _observed(runtime, opened, health)
    await runtime.in_thread(publish_leftovers, runtime)
    logging.getLogger().addHandler(runtime.log)
    opened.callback(logging.getLogger().removeHandler, runtime.log)
    endpoints = OwnEndpoints.of(ModelSettings()).open_to_jobs
    beat = Beat(runtime, inventory, name, time.time(), metrics, endpoints)
    keeper = Keeper(runtime, on_lost=_stop_job, facts=beat, loop=task_pool, inventory=inventory)
    health.keeper = keeper
    runtimes.install(runtime)
    opened.callback(runtimes.install, None)
    probe.share(SharedProbes(ledger))
    opened.callback(probe.share, None)
    _connect_remote_control(runtime, beat)
    opened.callback(remote_control.on_revoke.clear)
    opened.callback(remote_control.read_transcript.clear)
    keeper.start()
    opened.push_async_callback(asyncio.to_thread, keeper.stop)
    reaper = Reaper(backend, ledger, deployment)
    reaper.start()
    opened.push_async_callback(reaper.stop)
    unneeded = UnneededSnapshots(backend, ledger, runtime.resume)
    unneeded.start()
    opened.push_async_callback(unneeded.stop)
    ahead = AheadPreparation(
        runtime, lanes=lambda: INTAKE.open_lanes, is_full=lambda: task_pool.room() <= 0
    )
    ahead.start()
    opened.push_async_callback(ahead.stop)
    _say_ready(name, task_pool.limit)


def _say_ready(backend: str, slots: int) -> None:
    """One line after Celery's banner at every log level; without it, a worker looks hung."""
    lanes, stages = ", ".join(INTAKE.lanes) or "none", WorkerSettings().stages
    text = f"ready: lanes {lanes}; backend {backend}; {slots} slots; stages {stages}"
    record = logger.makeRecord(
        logger.name, logging.INFO, __file__, 0, text, (), None, extra={"action": "ready"}
    )
    logging.getLogger().handle(record)


def _places(url: str, task_pool: pool.TaskPool) -> StagePlaces | None:
    """The places of stages; agents have fewer than there are slots if jobs are set up ahead."""
    agents = (lambda: task_pool.limit - task_pool.ahead) if task_pool.ahead else None
    return StagePlaces.from_settings(url, agents=agents, is_leaving=_is_leaving)


def _is_leaving() -> bool:
    return INTAKE.state == "draining" or shutdown_is_ordered()


def _open_limits(runtime: Runtime, opened: AsyncExitStack) -> None:
    """Count model calls and trajectories in flight, unless the settings say otherwise."""
    if LimiterSettings().enabled:
        runtime.limiter = FleetLimiter(runtime.ledger.url)
        opened.push_async_callback(runtime.limiter.close)
    if EngineSettings().admission != "off":
        runtime.flights = FleetFlights(partial(Ledger.connect, runtime.ledger.url, timeout_s=2))
        opened.push_async_callback(runtime.flights.close)


async def _report_ended(inventory: Inventory, ledger: Ledger) -> None:
    """Drop the records of ended sandboxes; else the reaper does after their leases expire."""
    with suppress(HermesQueueError, TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(inventory.renew, ledger), 5)


async def _close_model_clients() -> None:
    # Loaded only if a job has called a model.
    if connection := sys.modules.get("hermes_queue.agent.endpoint.connection"):
        await connection.close_clients()


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as allowed, and warn if it is still too low."""
    descriptors.raise_limit()
    trajectories = pool.TaskPool.instance().limit
    if short := descriptors.shortage(trajectories):
        remedy = descriptors.remedy(trajectories)
        logger.warning("%s; %s", short, remedy, extra={"action": "descriptors_low"})


def _connect_remote_control(runtime: Runtime, beat: Beat) -> None:
    """Answer `inspect`, pass on revocations, and have the backend follow the pool's size."""
    task_pool = pool.TaskPool.instance()

    def slots() -> dict[str, object]:
        facts = {name: value for name, value in beat().items() if name not in ("oldest", "beat_s")}
        return facts | {"trajectories": oldest(runtime.progress(), remote_control.MOST_LISTED)}

    def resize(slot_count: int) -> None:
        task_pool.call_soon(runtime.backend.resize, slot_count)

    def revoked(task_ids: list[str], terminate: bool) -> None:
        """Report revocations to the ledger: Celery forgets them and drops the messages."""
        call = partial(
            cancel_tasks,
            runtime.ledger,
            task_ids,
            reason="revoked by remote control",
            waiting_only=not terminate,
        )
        task_pool.submit(runtime.until_redis_answers(call))

    remote_control.on_revoke[:] = [revoked]
    remote_control.describe[:] = [slots]
    remote_control.read_transcript[:] = [LiveTranscripts(runtime).read]
    pool.on_resize[:] = [resize]


def _serve_metrics(runtime: Runtime, opened: AsyncExitStack, health: Health) -> str:
    """Serve metrics and health if a port is set; returns the address to scrape, or ""."""
    settings = MetricsSettings()
    pages = {"/health/live": health.live, "/health/ready": health.ready}
    served = metering.serve(*_occupation(runtime), settings, pages)
    if not served:
        return ""
    runtime.meter, endpoint = served
    opened.push_async_callback(asyncio.to_thread, endpoint.close)
    return endpoint.target(settings.advertise)


def _observed(runtime: Runtime, opened: AsyncExitStack, health: Health) -> str:
    """Serve metrics and export, as far as the settings say; returns as `_serve_metrics`."""
    metrics = _serve_metrics(runtime, opened, health)
    _export(runtime, opened)
    return metrics


def _export(runtime: Runtime, opened: AsyncExitStack) -> None:
    """Export traces, metrics and logs, if there is a collector to export to."""
    if OtelSettings().endpoint is None:
        return
    from hermes_queue.telemetry.otel.exporter import open_exporter
    from workers.tracing.tracer import Tracer

    exporter = open_exporter("worker", runtime.owner)
    if exporter is None:
        return
    opened.push_async_callback(asyncio.to_thread, exporter.close)
    exporter.export_logs(logging.getLogger())
    gauges = partial(metering.slot_values, *_occupation(runtime))
    runtime.meter = exporter.export_meter(runtime.meter, gauges)
    if exporter.settings.exports("traces"):
        runtime.tracer = Tracer(exporter)


def _occupation(runtime: Runtime) -> tuple[Callable[[], int], Callable[[], list[str]]]:
    """The most trajectories at once, and the stages of those that run now."""
    return (
        lambda: pool.TaskPool.instance().limit,
        lambda: [each.stage for each in runtime.progress().values()],
    )


def _stop_job(task: pool.RunningTask, reason: str) -> None:
    """Stop a job whose lease is lost, that is surplus, or that an operator has cancelled.

    Records of surplus and cancelled jobs are kept. The lease of a cancelled job continues.
    """
    whys: dict[str, pool.CancelReason] = {
        "surplus": "cancelled",
        "cancel": "terminate",
        "stuck": "stuck",
    }
    pool.TaskPool.instance().cancel_running(task, whys.get(reason, "lease_lost"))


pool.on_loop_start.append(open_runtime)
pool.on_loop_stop.append(close_runtime)
