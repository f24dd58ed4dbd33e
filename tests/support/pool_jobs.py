"""A small Celery app on our pool, for tests that start real workers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from celery import Celery

from hermes_queue.broker.pool import (
    RunningTask,
    TaskPool,
    current_task,
    on_loop_start,
    on_loop_stop,
)
from hermes_queue.errors import IsolationUnavailable

app = Celery("pool_jobs", broker=os.environ["POOL_JOBS_BROKER"])
app.conf.update(
    worker_pool="hermes_queue.broker.pool:TaskPool",
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    worker_enable_prefetch_count_reduction=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"visibility_timeout": 60, "socket_timeout": 30},
)
TaskPool.cancel_grace_s = 0.5
slept: dict[str, RunningTask] = {}


def mark(*words: object) -> None:
    """Leave a line for the test, in one write."""
    with Path(os.environ["POOL_JOBS_MARKS"]).open("a") as marks:
        marks.write(" ".join(map(str, words)) + "\n")


@on_loop_start.append
async def _opened() -> None:
    mark("opened")
    if os.environ.get("POOL_JOBS_REFUSE"):
        raise IsolationUnavailable("no fence on this machine: install bubblewrap")


@on_loop_stop.append
async def _closed() -> None:
    mark("closed")


@app.task(name="add")
async def add(a: int, b: int) -> int:
    return a + b


@app.task(name="fail")
async def fail() -> None:
    raise ValueError("out of order")


@app.task(name="exit")
async def leave() -> None:
    raise SystemExit(7)


@app.task(name="threaded")
def threaded() -> str:
    return "from a thread"


@app.task(name="sleep")
async def sleep(seconds: float, *, early: bool = False) -> str:
    """Mark start and end; what cancelled it is marked too."""
    task = slept[current_task().task_id] = current_task()
    acknowledged = await task.acknowledge() if early else None
    mark("start", task.task_id, acknowledged)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as error:
        mark("cancelled", task.task_id, task.cancel_reason, type(error).__name__)
        raise
    mark("end", task.task_id)
    return "slept"


@app.task(name="gated")
async def gated(gate: str, *, early: bool = False) -> None:
    """Mark start and end, and end when the test says so with a file `gate`."""
    task = current_task()
    acknowledged = await task.acknowledge() if early else None
    mark("start", task.task_id, acknowledged)
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    mark("end", task.task_id)


@app.task(name="acknowledge_late")
async def acknowledge_late() -> str:
    """Acknowledge, twice, when the test says so with a file "go"."""
    task = current_task()
    mark("start", task.task_id)
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    mark("acknowledged", task.task_id, await task.acknowledge(), await task.acknowledge())
    return "done"


@app.task(name="stubborn")
async def stubborn(swallows: int) -> str:
    """Swallow this number of cancellations."""
    task = current_task()
    mark("start", task.task_id)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            mark("cancelled", task.task_id, task.cancel_reason)
            swallows -= 1
            if swallows < 0:
                raise


@app.task(name="grouped", soft_time_limit=0.3)
async def grouped() -> str:
    """A task group under a soft limit that the body survives."""
    task = current_task()

    async def child() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            mark("child ended", task.task_id)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
    except asyncio.CancelledError as error:
        mark("cancelled", task.task_id, task.cancel_reason, type(error).__name__)
    async with asyncio.timeout(5):
        await asyncio.sleep(0.01)
    return "survived"


@app.task(name="block")
async def block(seconds: float) -> None:
    """Block the event loop, which no coroutine may do."""
    time.sleep(seconds)


@app.task(name="lose")
async def lose(task_id: str) -> bool:
    """Cancel a job like the lease thread when another worker has taken it."""
    cancel = TaskPool.instance().cancel_running
    return await asyncio.to_thread(cancel, slept[task_id], "lease_lost")
