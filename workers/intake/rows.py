"""The row of a job, and the definition of its program, if they are stored beside the jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

from hermes_queue.errors import EnvBug
from hermes_queue.ledger.items import get_item
from hermes_queue.models import TrajectoryJob
from hermes_queue.wire.parameters import program_sha256
from workers.runtime import Runtime

Stored = dict[str, Any]


async def row_and_program(runtime: Runtime, job: TrajectoryJob) -> tuple[Stored, Stored | None]:
    """The row, and the program's definition if the job names one by its hash.

    Raises:
        EnvBug: Redis has one of them no longer.
    """
    row = job.item if job.item is not None else await _item(runtime, str(job.item_sha256))
    sha256 = program_sha256(job.agent.params)
    return row, await _item(runtime, sha256) if sha256 else None


async def _item(runtime: Runtime, sha256: str) -> Stored:
    item = await runtime.until_redis_answers(partial(get_item, runtime.ledger, sha256))
    if item is None:
        raise EnvBug(f"item {sha256} is gone from Redis: enqueue the run again")
    return item
