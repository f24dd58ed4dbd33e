"""Start and stop of a worker process, under a bare `celery -A hermes_queue worker`.

Hooked into the pool: resources of tasks are opened on the pool's loop before the first task and
closed after the last one. SIGTERM is Celery's warm shutdown: intake stops, the pool lets running
trajectories finish for `WorkerSettings.soft_shutdown_s` and then cancels the rest, which hand
their jobs back to the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
from contextlib import suppress
from functools import partial

from hermes_queue.agent.endpoint import probe
from hermes_queue.broker import pool
from hermes_queue.broker.pool import remote_control
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.cancelling import cancel_tasks
from hermes_queue.ledger.fleet.creations import FleetCreationGate
from hermes_queue.ledger.fleet.snapshots import FleetSnapshots
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.host import descriptors
from hermes_queue.settings import (
    LimiterSettings,
    MetricsSettings,
    PathSettings,
    SandboxSettings,
)
from hermes_queue.telemetry.endpoint import MetricsEndpoint
from workers import runtime as runtimes
from workers.bodies import Bodies
from workers.calls.fleet_limiter import FleetLimiter
from workers.calls.shared_probes import SharedProbes
from workers.runtime import Runtime
from workers.spool import Spool
from workers.upkeep import metering
from workers.upkeep.beat import Beat, oldest
from workers.upkeep.inventory import Inventory
from workers.upkeep.keeper import Keeper
from workers.upkeep.reaper import Reaper
from workers.upkeep.recovery import publish_leftovers

logger = logging.getLogger(__name__)

_keeper: Keeper | None = None
_reaper: Reaper | None = None
_inventory: Inventory | None = None
_metrics: MetricsEndpoint | None = None


async def open_runtime() -> None:
    """Open backend, ledger, spool and metrics; start the keeper. Runs on the pool's loop.

    Raises:
        ConfigurationError: the port for metrics cannot be opened, or Redis deletes keys when full.
        IsolationUnavailable: this machine cannot isolate slots.
        RedisUnavailable: Redis does not answer at start.
    """
    global _keeper, _reaper, _inventory
    owner = f"{os.uname().nodename}-{secrets.token_hex(6)}"
    ledger = Ledger.connect()
    ledger.refuse_eviction()
    _raise_descriptor_limit()
    deployment = ledger.deployment_id()
    name = SandboxSettings().backend
    inventory = Inventory(ledger, name)
    backend = make_backend(
        name,
        slots=pool.TaskPool.instance().limit,
        labels={"deployment": deployment, "worker": owner},
        fleet=Fleet(inventory, FleetCreationGate(ledger, name), FleetSnapshots(ledger)),
    )
    await backend.start()
    try:
        spool = Spool(PathSettings().spool_dir, deployment, owner)
        runtime = Runtime(
            owner=owner,
            ledger=ledger,
            backend=backend,
            spool=spool,
            bodies=Bodies.from_settings(ledger.url),
        )
        if LimiterSettings().enabled:
            runtime.limiter = FleetLimiter(ledger.url)
        _serve_metrics(runtime)
        await runtime.in_thread(publish_leftovers, runtime)
        logging.getLogger().addHandler(runtime.log)
        target = _metrics.target(MetricsSettings().advertise) if _metrics else ""
        beat = Beat(runtime, inventory, name, time.time(), target)
        loop = pool.TaskPool.instance()
        keeper = Keeper(runtime, on_lost=_stop_job, facts=beat, loop=loop, inventory=inventory)
    except BaseException:
        _close_metrics()
        await backend.stop()
        raise
    runtimes.install(runtime)
    probe.share(SharedProbes(runtime))
    _keeper = keeper
    keeper.start()
    _inventory = inventory
    _connect_remote_control(runtime, beat)
    _reaper = Reaper(backend, ledger, deployment)
    _reaper.start()


async def close_runtime() -> None:
    """Stop the keeper, free slots and sandboxes, close connections. Idempotent."""
    global _keeper, _reaper
    keeper, _keeper = _keeper, None
    reaper, _reaper = _reaper, None
    if reaper:
        await reaper.stop()
    if keeper:
        await asyncio.to_thread(keeper.stop)
    await asyncio.to_thread(_close_metrics)
    with suppress(RuntimeError):
        runtime = runtimes.get()
        runtimes.install(None)
        logging.getLogger().removeHandler(runtime.log)
        probe.share(None)
        remote_control.on_revoke[:] = []
        await runtime.backend.stop()
        if _inventory:  # else the reaper drops the records after their leases expire
            with suppress(HermesQueueError, TimeoutError):
                await asyncio.wait_for(runtime.in_thread(_inventory.renew, runtime.ledger), 5)
        # Loaded only if a job has called a model.
        if connection := sys.modules.get("hermes_queue.agent.endpoint.connection"):
            await connection.close_clients()
        if runtime.limiter:
            await runtime.limiter.close()
        runtime.spool.close()
        runtime.ledger.close()
        runtime.executor.shutdown(wait=False)
        runtime.uploads.shutdown(wait=False, cancel_futures=True)


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as allowed, and warn if it is still too low."""
    descriptors.raise_limit()
    trajectories = pool.TaskPool.instance().limit
    if short := descriptors.shortage(trajectories):
        remedy = descriptors.remedy(trajectories)
        logger.warning("%s; %s", short, remedy, extra={"action": "descriptors_low"})


def _connect_remote_control(runtime: Runtime, beat: Beat) -> None:
    """Answer `inspect slots`, pass on revocations, and have the backend follow the pool's size."""
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
        task_pool.submit(runtime.persist(call))

    remote_control.on_revoke[:] = [revoked]
    remote_control.describe[:] = [slots]
    pool.on_resize[:] = [resize]


def _serve_metrics(runtime: Runtime) -> None:
    global _metrics
    served = metering.serve(
        lambda: pool.TaskPool.instance().limit,
        lambda: [each.stage for each in runtime.progress().values()],
        MetricsSettings(),
    )
    if served:
        runtime.meter, _metrics = served


def _close_metrics() -> None:
    global _metrics
    endpoint, _metrics = _metrics, None
    if endpoint:
        endpoint.close()


def _stop_job(job: pool.Job, reason: str) -> None:
    """Stop a job whose lease is lost, that is surplus, or that an operator has cancelled.

    Records of surplus and cancelled jobs are kept. The lease of a cancelled job continues.
    """
    whys: dict[str, pool.CancelReason] = {"surplus": "cancelled", "cancel": "terminate"}
    pool.TaskPool.instance().cancel_job(job, whys.get(reason, "lease_lost"))


pool.on_loop_start.append(open_runtime)
pool.on_loop_stop.append(close_runtime)
