"""Worker processes of their own for jobs under which workers die.

After two deaths all jobs that shared them are suspects, and nearly all are innocent. They move to
lanes of quarantine: first in batches smaller than what died together, those under which a process
dies again in smaller ones, at last alone (`QUARANTINE_SIZES`). Any worker that sees jobs waiting
there starts a child for each size of batch, which ends when its lanes are empty. Draining a worker
instead would stop its other jobs from being replaced, for as long as the longest one runs.

A worker knows at once that its child has died, and says so: nobody waits for leases to end. A death
alone that a living parent has seen is the job's own; when parent and child are gone at once it may
have been their host's (`keyspace/lua/include/deaths.lua`).
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
"""After a child that could not even start the next one is tried so much later."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's name for the time since this host was started; "" when it has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class PoisonJob(SandboxError):
    """Too many workers died while they ran this job."""

    kind = "poison"


async def isolated(runtime: Runtime, claim: Claim, begun: Begun, job: TrajectoryJob) -> str:
    """Hand a job back to run alone when workers died under its item in an earlier run.

    Returns:
        The id of the dead letter that tells of it; "" when the job is to be run here.
    """
    if not begun.any_poison:
        return ""
    letter = await runtime.persist(isolate, runtime.ledger, claim, job, owner=runtime.owner)
    if letter:
        logger.warning(
            "%s is to run alone: workers died under its item, see dead letter %s",
            claim.trajectory_id,
            letter,
            extra={"action": "isolated", "trajectory_id": claim.trajectory_id},
        )
    return letter


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    name: str
    """Its node name, which no other worker has."""
    owner: str = ""
    """What the ledger calls it; "" until it has said so."""


class QuarantineWorkers:
    """The children of a worker: at most one per size of batch, for all of its lanes."""

    def __init__(self, ledger: Ledger, lanes: Callable[[], Sequence[str]], *, slots: int) -> None:
        """Prepare; nothing is started.

        Args:
            ledger: the worker's Redis.
            lanes: that the worker serves now. Quarantine lanes among them need no child.
            slots: of the worker; a child has half as many at most.
        """
        self._ledger = ledger
        self._served = lanes
        self._most = max(1, slots // 2)
        self._boot_id = boot_id()
        self._children: dict[int, _Child] = {}
        self._not_before: dict[int, float] = {}
        """On the monotonic clock, by size."""

    def look(self) -> None:
        """Say which children have died, and start one for each size that has jobs waiting.

        Raises:
            RedisUnavailable: to be repeated.
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
        """Learn what a child is called, and when it has died say so."""
        ended = child.process.poll()
        if not child.owner:
            for worker in self._ledger.workers():
                if worker.get("name", "").startswith(f"{child.name}@"):
                    child.owner = str(worker["owner"])
        if ended is None:
            return
        if ended and child.owner:
            count = self._ledger.worker_ended(child.owner, boot_id=self._boot_id, witnessed=True)
            logger.warning(
                "a worker for batches of %d in quarantine has died (%d) under %d jobs",
                size,
                ended,
                count,
                extra={"action": "quarantine_death"},
            )
        elif ended:
            self._not_before[size] = time.monotonic() + _AGAIN_S
        del self._children[size]

    def _start(self, size: int) -> _Child:
        slots = min(size, self._most)
        logger.warning(
            "jobs wait in quarantine; starting a worker for %d of them at a time",
            slots,
            extra={"action": "quarantine_worker"},
        )
        source = str(Path(hermes_queue.__file__).parent.parent)
        lanes = [quarantine_lane(lane, size) for lane in self._lanes()]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            f"{PREFIX}REDIS_URL": self._ledger.url,
            f"{PREFIX}WORKER_LANES": ",".join(lanes),
            f"{PREFIX}WORKER_EXIT_WHEN_IDLE_S": str(_IDLE_S),
            f"{PREFIX}WORKER_SOFT_SHUTDOWN_S": "0",
        }
        if os.environ.get(f"{PREFIX}METRICS_WORKER_PORT"):  # ours is taken, by us
            environment[f"{PREFIX}METRICS_WORKER_PORT"] = "0"
        name = f"quarantine-{secrets.token_hex(6)}"
        command = worker_command(name, slots, "info")
        return _Child(child_process.start(command, environment), name)
