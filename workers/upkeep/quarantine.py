"""Separate worker processes for jobs under which workers die.

After two deaths, all jobs that shared both are suspects, and nearly all of them are innocent.
They move to quarantine lanes: first in batches smaller than the one that died, then, if a
process dies again, in ever smaller ones, at last alone (`QUARANTINE_SIZES`). Any worker that
sees jobs waiting there starts a child for each size of batch, which ends when its lanes are
empty. Draining a worker instead would leave the slots of its other jobs empty as long as the
longest one runs.

A worker notices its child's death at once and reports it, so nobody waits for leases to expire.
Others that find the child dead leave the report to it as long as it lives.
The death of a job that ran alone counts against it if the parent survives to report it; if
parent and child die together, their host may be the cause (`keyspace/lua/include/deaths.lua`).
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import hermes_queue
from hermes_queue.broker import child_process
from hermes_queue.broker.worker import command as worker_command
from hermes_queue.errors import SandboxError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Begun, Claim, Ledger
from hermes_queue.ledger.poison import isolate
from hermes_queue.models import TrajectoryJob
from hermes_queue.queues import QUARANTINE, QUARANTINE_SIZES, quarantine_lane, queue_keys
from hermes_queue.settings import PREFIX
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

_STOP_S = 10.0
_IDLE_S = 10.0
_AGAIN_S = 10.0
"""Seconds before the next child is started after one that failed to start."""
_PARENT = "HERMES_QUARANTINE_PARENT"
"""Variable that names the parent to its child, by its owner id in the ledger. Not a setting, hence
without their prefix."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's id of this host's current boot; "" if there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def parent_worker() -> str:
    """Return the owner id of the worker that started this one for its quarantine, or ""."""
    return os.environ.get(_PARENT, "")


class PoisonJob(SandboxError):
    """Too many workers died while they ran this job."""

    kind = "poison"


async def isolated(runtime: Runtime, claim: Claim, begun: Begun, job: TrajectoryJob) -> str:
    """Hand a job back to run alone if workers died under its item in an earlier run.

    Returns:
        The id of the job's dead letter; "" if the job is to run here.
    """
    if not begun.any_poison:
        return ""
    letter = await runtime.until_redis_answers(
        isolate, runtime.ledger, claim, job, owner=runtime.owner
    )
    if letter:
        message = "%s must run alone: workers died under its item, see dead letter %s"
        logger.warning(message, claim.trajectory_id, letter, extra={"action": "isolated"})
    return letter


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    name: str
    """Its node name, which no other worker has."""
    owner: str = ""
    """Its owner id in the ledger; "" until it has registered."""


class QuarantineWorkers:
    """The children of a worker: at most one per size of batch, for all of its normal lanes."""

    def __init__(
        self, ledger: Ledger, owner: str, lanes: Callable[[], Sequence[str]], *, slots: int
    ) -> None:
        """Prepare; nothing is started.

        `owner` is the worker, and `lanes` returns those that it serves now. A child has half of
        its `slots` at most.
        """
        self._ledger = ledger
        self._owner = owner
        self._served = lanes
        self._most = max(1, slots // 2)
        self._children: dict[int, _Child] = {}
        self._not_before: dict[int, float] = {}
        """On the monotonic clock, by size."""

    def look(self) -> None:
        """Report children that have died, and start one for each size that has jobs waiting.

        Raises:
            RedisUnavailable: repeat the call.
        """
        for size, child in list(self._children.items()):
            self._attend(size, child)
        waiting = [size for size in QUARANTINE_SIZES if size not in self._children]
        if not self._lanes() or not self._exists(waiting):
            return
        for size in waiting:
            if time.monotonic() >= self._not_before.get(size, 0.0) and self._exists([size]):
                self._children[size] = self._start(size)

    def stop(self) -> None:
        """End the children; the jobs they run are handed back. Idempotent."""
        children, self._children = self._children, {}
        for child in children.values():
            if child.process.poll() is None:
                child.process.terminate()
        for child in children.values():
            child_process.end(child.process, _STOP_S)

    def _lanes(self) -> list[str]:
        return [lane for lane in self._served() if QUARANTINE not in lane]

    def _exists(self, sizes: Sequence[int]) -> bool:
        """Whether a message waits in a lane of one of these sizes."""
        lanes = [quarantine_lane(lane, size) for lane in self._lanes() for size in sizes]
        keys = [self._ledger.key(key) for lane in lanes for key in queue_keys(lane).all]
        with explained(self._ledger.url):
            return bool(keys and self._ledger.client.exists(*keys))

    def _attend(self, size: int, child: _Child) -> None:
        """Find a child's owner id in the ledger, and report its death."""
        ended = child.process.poll()
        if not child.owner:
            for worker in self._ledger.workers():
                if worker.get("name", "").startswith(f"{child.name}@"):
                    child.owner = str(worker["owner"])
        if ended is None:
            return
        if ended and child.owner:
            count = self._ledger.worker_ended(child.owner, boot_id=boot_id(), witnessed=True)
            message = "a worker for batches of %d in quarantine has died (%d) under %d jobs"
            logger.warning(message, size, ended, count, extra={"action": "quarantine_death"})
        elif ended:
            self._not_before[size] = time.monotonic() + _AGAIN_S
        del self._children[size]

    def _start(self, size: int) -> _Child:
        slots = min(size, self._most)
        message = "jobs wait in quarantine; starting a worker for %d of them at a time"
        logger.warning(message, slots, extra={"action": "quarantine_worker"})
        source = str(Path(hermes_queue.__file__).parent.parent)
        lanes = [quarantine_lane(lane, size) for lane in self._lanes()]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            f"{PREFIX}REDIS_URL": self._ledger.url,
            f"{PREFIX}WORKER_LANES": ",".join(lanes),
            f"{PREFIX}WORKER_EXIT_WHEN_IDLE_S": str(_IDLE_S),
            f"{PREFIX}WORKER_SOFT_SHUTDOWN_S": "0",
            f"{PREFIX}STAGES_PREFETCH": "0",
            _PARENT: self._owner,
        }
        if os.environ.get(f"{PREFIX}METRICS_WORKER_PORT"):  # ours is taken, by us
            environment[f"{PREFIX}METRICS_WORKER_PORT"] = "0"
        name = f"quarantine-{secrets.token_hex(6)}"
        command = worker_command(name, slots, "info")
        return _Child(child_process.start(command, environment), name)
