"""Prepares environments of waiting jobs while all slots of the worker are busy.

The jobs stay where they wait: those that are next are looked at, not taken, and any worker may run
them. Builds, downloads and clones go through the same caches and locks as those of jobs, so
nothing is made twice, and a job that needs what is being made waits for it. A preparation that
fails is no failure of the job, which tries itself and reports its own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from envs.base import PreparesAhead, load_env, load_item
from hermes_queue import extensions
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import HermesQueueError, foreign_error
from hermes_queue.extensions import offers
from hermes_queue.ledger.items import get_item
from hermes_queue.ledger.waiting import claim_preparation, next_waiting, waiting_jobs
from hermes_queue.models import TrajectoryJob
from hermes_queue.queues import QUARANTINE
from hermes_queue.sandbox.base import AssetSpec, SandboxBackend, SlotSpec
from workers.imports import may_import
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

LOOK_S = 1.0
MOST_LOOKED_AT = 32
"""Waiting jobs that are looked at."""
_REMEMBERED = 4096


class AheadPreparation:
    """The background tasks of one worker; on the pool's event loop."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        lanes: Callable[[], Sequence[str]],
        is_full: Callable[[], bool],
    ) -> None:
        """Prepare; `start` begins.

        `lanes` are those from which the worker takes jobs now; `is_full`: it takes none, because
        all its slots are busy.
        """
        self._runtime = runtime
        self._lanes = lanes
        self._is_full = is_full
        self._looked_at: OrderedDict[str, None] = OrderedDict()
        self._without: set[str] = set()
        """Envs that have nothing to prepare. Each claim of an item stays in Redis for a day."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Begin with as many tasks as the settings say, perhaps none."""
        count = self._runtime.worker.prepare_ahead
        self._tasks = [asyncio.create_task(self._loop()) for _ in range(count)]

    async def stop(self) -> None:
        """End them and what they build. Idempotent."""
        self._stopping = True
        await end_tasks(*self._tasks)
        self._tasks.clear()

    async def _loop(self) -> None:
        while True:
            if not await self._step():
                await asyncio.sleep(LOOK_S)

    async def _step(self) -> bool:
        """Prepare for one waiting job; whether there was one to prepare for."""
        job = None
        try:
            # Without isolation there is one place per kind of asset, and slots use it.
            if not (self._is_full() and self._runtime.backend.capabilities.isolation):
                return False
            if (found := await self._runtime.in_thread(self._next)) is None:
                return False
            job, row, needs = found
            began = time.monotonic()
            async with asyncio.timeout(self._runtime.worker.prepare_timeout_s):
                if not await prepare(self._runtime.backend, job, row):
                    self._without.add(job.env)
                    return False
            self._runtime.ready.note(needs)
        except GeneratorExit:
            raise
        except BaseException as error:  # whatever an env raises must end neither us nor the worker
            if self._stopping and isinstance(error, asyncio.CancelledError):
                raise
            name, extra = job.trajectory_id if job else "", {"action": "prepare_ahead_failed"}
            text = str(error) if isinstance(error, HermesQueueError) else foreign_error(error)
            logger.info("not prepared ahead of time: %s %s", name, text, extra=extra)
            return False
        took_s, extra = time.monotonic() - began, {"action": "prepared_ahead"}
        logger.info("prepared for %s in %.1f s", job.trajectory_id, took_s, extra=extra)
        return True

    def _next(self) -> tuple[TrajectoryJob, dict[str, Any], str] | None:
        """The first waiting job for which this worker is to prepare, its row and needs. Blocking.

        Raises:
            HermesQueueError: Redis does not answer, or the row cannot be read.
        """
        ledger = self._runtime.ledger
        names = [name for name in self._waiting() if name not in self._looked_at]
        for name, job in zip(names, waiting_jobs(ledger, names), strict=True):
            if job is not None and not self._is_known(job):
                continue  # until a job of this worker has loaded its env
            self._looked_at[name] = None
            while len(self._looked_at) > _REMEMBERED:
                self._looked_at.popitem(last=False)
            if job is None or job.env in self._without:
                continue
            needs = claim_preparation(ledger, job, owner=self._runtime.owner)
            if needs is not None:
                row = job.item or get_item(ledger, str(job.item_sha256))
                if row is not None:
                    return job, row, needs
        return None

    def _waiting(self) -> list[str]:
        """Ids of the jobs that this worker would take next, the next one first."""
        lanes = [lane for lane in self._lanes() if QUARANTINE not in lane]
        return next_waiting(self._runtime.ledger, lanes, most=MOST_LOOKED_AT) if lanes else []

    def _is_known(self, job: TrajectoryJob) -> bool:
        """Whether a job of this worker has loaded the env already.

        Importing a module runs it, and only a job can be blamed for what that does.
        """
        module = extensions.module_of("env", job.env)
        allowed = self._runtime.worker.imports
        return module is not None and module in sys.modules and may_import(module, allowed)


async def prepare(backend: SandboxBackend, job: TrajectoryJob, row: dict[str, Any]) -> bool:
    """Make what does not need the job's slot; whether its env has anything of that kind.

    Raises whatever the env or the backend raises.
    """
    env = load_env(job.env)
    item = await load_item(env, row)
    spec = env.spec(item, job.profile)
    if not spec.assets and not offers(env, PreparesAhead):
        return False
    await backend.prepare(spec)
    if offers(env, PreparesAhead):
        await env.prepare_ahead(item, partial(_read, backend, job.profile))
    return True


async def _read(backend: SandboxBackend, profile: str, asset: AssetSpec, path: str) -> bytes:
    await backend.prepare(SlotSpec(profile=profile, assets=(asset,), python=asset.python))
    return await backend.read_asset(asset, path)
