"""Start and stop of a worker process, under a bare `celery -A hermes_queue worker`.

Hooked into the pool: what tasks need is opened on the pool's loop before the first task
and closed after the last one. SIGTERM is Celery's warm shutdown: intake stops, the pool
lets running trajectories finish for `WorkerSettings.soft_shutdown_s` and then cancels
the rest, which hand their jobs back to the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
from contextlib import suppress

from hermes_queue import pool
from hermes_queue.agent import probe
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.creations import FleetCreationGate
from hermes_queue.ledger.snapshots import FleetSnapshots
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.capacity import Growing
from hermes_queue.settings import (
    LimiterSettings,
    ModalSettings,
    PathSettings,
    SandboxSettings,
    WorkerSettings,
)
from workers import runtime as runtimes
from workers.fleet_limiter import FleetLimiter
from workers.inventory import Inventory
from workers.keeper import Keeper
from workers.probes import SharedProbes
from workers.reaper import Reaper
from workers.recovery import publish_leftovers
from workers.runtime import Runtime
from workers.spool import Spool

_keeper: Keeper | None = None
_reaper: Reaper | None = None
_inventory: Inventory | None = None


async def open_runtime() -> None:
    """Open backend, ledger and spool; start the keeper. Runs on the pool's loop.

    Raises:
        IsolationUnavailable: this machine cannot fence slots off.
        RedisUnavailable: Redis does not answer at start.
    """
    global _keeper, _reaper, _inventory
    owner = f"{os.uname().nodename}-{secrets.token_hex(6)}"
    ledger = Ledger.connect()
    deployment = ledger.deployment_id()
    inventory = Inventory(ledger, SandboxSettings().backend)
    name, modal = SandboxSettings().backend, ModalSettings()
    backend = make_backend(
        name,
        slots=pool.TaskPool.instance().limit,
        labels={"deployment": deployment, "pool": "default", "worker": owner},
        observer=inventory,
        offers={
            "gate": FleetCreationGate(
                ledger, name, creates_per_s=modal.creates_per_s, max_starting=modal.max_starting
            ),
            "snapshots": FleetSnapshots(ledger),
        },
    )
    await backend.start()
    try:
        lanes = tuple(filter(None, map(str.strip, WorkerSettings().lanes.split(","))))
        spool = Spool(PathSettings().spool_dir, deployment, owner)
        runtime = Runtime(owner=owner, ledger=ledger, backend=backend, spool=spool, lanes=lanes)
        if LimiterSettings().enabled:
            runtime.limiter = FleetLimiter(ledger.url)
        await runtime.in_thread(publish_leftovers, runtime)
        logging.getLogger().addHandler(runtime.log)
        facts = {
            "owner": owner,
            "pid": os.getpid(),
            "host": runtime.host,
            "lanes": lanes,
            "slots": pool.TaskPool.instance().limit,
            "started": time.time(),
        }
        keeper = Keeper(runtime, on_lost=_stop_job, facts=lambda: dict(facts), inventory=inventory)
    except BaseException:
        await backend.stop()
        raise
    if isinstance(backend, Growing):
        pool.TaskPool.instance().on_grow.append(backend.fit)
    runtimes.install(runtime)
    probe.share(SharedProbes(runtime))
    _keeper = keeper
    keeper.start()
    _inventory = inventory
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
    with suppress(RuntimeError):
        runtime = runtimes.get()
        runtimes.install(None)
        logging.getLogger().removeHandler(runtime.log)
        probe.share(None)
        await runtime.backend.stop()
        if _inventory:  # else the reaper drops the records when their leases have ended
            with suppress(HermesQueueError, TimeoutError):
                await asyncio.wait_for(runtime.in_thread(_inventory.renew, runtime.ledger), 5)
        if openai := sys.modules.get("hermes_queue.agent.endpoint"):  # only if a job used it
            await openai.close_clients()
        if runtime.limiter:
            await runtime.limiter.close()
        runtime.spool.close()
        runtime.ledger.close()
        runtime.executor.shutdown(wait=False)


def _stop_job(job: pool.Job, reason: str) -> None:
    """A lease is gone. Surplus samples are stopped, but what they have to show is kept."""
    why: pool.CancelReason = "cancelled" if reason == "surplus" else "lease_lost"
    pool.TaskPool.instance().cancel_job(job, why)


pool.on_loop_start.append(open_runtime)
pool.on_loop_stop.append(close_runtime)
