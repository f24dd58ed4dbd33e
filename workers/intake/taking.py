"""From a message to a leased trajectory."""

from __future__ import annotations

import asyncio
import itertools
import secrets

from hermes_queue.broker.pool import RunningTask
from hermes_queue.broker.pool.intake import INTAKE
from hermes_queue.ledger import Begun, Claim, transitions
from hermes_queue.wire.ids import CANCEL
from workers.runtime import Runtime

_LAST_WORDS_S = 5.0
"""Longest wait for the answer of a task that is cancelled while it asks for its lease."""

_slots = itertools.count()


async def take(runtime: Runtime, task: RunningTask, trajectory_id: str, attempt: int) -> Begun:
    """Ask for a lease. If it is granted although we were cancelled, give it back.

    A message says only that jobs wait in a lane: the ledger decides which of those that this worker
    may run is next. Only the message of a cancelled job stands for that job.
    """
    lanes = () if task.task_id.endswith(CANCEL) else INTAKE.open_lanes
    asking = asyncio.ensure_future(
        runtime.answered(
            transitions.begin(
                trajectory_id,
                attempt,
                owner=runtime.owner,
                lease_s=runtime.lease.duration_s,
                nonce=secrets.token_hex(8),
                results=runtime.results,
                lanes=lanes,
                slot=next(_slots),
                ready="" if runtime.backend.capabilities.remote else runtime.ready.text,
            )
        )
    )
    try:
        # Shielded: Redis may grant the lease after we were cancelled, and only its answer tells.
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # The call is made all the same. If a lease granted now were not given back, the job
        # would wait until the lease expires, and that would count as the death of a worker.
        done, _ = await asyncio.wait({asking}, timeout=_LAST_WORDS_S)
        asking.cancel()
        if done and not asking.exception() and asking.result().verdict == "run":
            claim = Claim(asking.result().trajectory_id, asking.result().epoch)
            await runtime.answered(
                transitions.requeue(claim, owner=runtime.owner, retry=runtime.retry)
            )
        raise
