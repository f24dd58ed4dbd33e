"""A Celery app on our pool, for `celery -A benchmarks.pool worker`; BENCHMARK_BROKER is its URL."""

from __future__ import annotations

import asyncio
import os

from celery import Celery

from hermes_queue.broker.pool import current_task

app = Celery("benchmark", broker=os.environ.get("BENCHMARK_BROKER"))
app.conf.update(
    worker_pool="hermes_queue.broker.pool:TaskPool",
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


@app.task(name="noop")
async def noop() -> None:
    """Nothing but what every job of ours does first."""
    await current_task().acknowledge()


@app.task(name="sleep")
async def sleep(seconds: float) -> None:
    """A job that waits for a model."""
    await current_task().acknowledge()
    await asyncio.sleep(seconds)
