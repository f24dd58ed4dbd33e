"""A real Atropos server, a trainer, and groups in a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from atropos_api import AtroposApi, Trainer
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.ledger import Ledger
from hermes_queue.sinks.atropos.options import AtroposOptions
from hermes_queue.sinks.atropos.sink import AtroposSink


@pytest.fixture
def api(tmp_path: Path) -> Iterator[AtroposApi]:
    server = AtroposApi(tmp_path / "api.log")
    server.start()
    yield server
    server.kill9()


@pytest.fixture
def trainer(api: AtroposApi) -> Trainer:
    """Of batches of two groups of four; it has not registered yet."""
    return Trainer(api)


class Running:
    """A sink in this process."""

    def __init__(self, sink: AtroposSink) -> None:
        self.sink = sink
        self.counts = sink.counts
        self.task = asyncio.create_task(sink.run())

    async def until(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Wait for the condition; the sink's own failure is raised here."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                if self.task.done():
                    await self.task
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self.sink.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


Start = Callable[..., Running]


@pytest.fixture
async def start(ledger: Ledger, api: AtroposApi) -> AsyncIterator[Start]:
    """Starts sinks; those that run still are stopped at the end."""
    started: list[Running] = []

    def begin_sink(**options: object) -> Running:
        chosen = {"url": api.url, "redis_url": ledger.url, "settle_s": 0.3, "poll_s": 0.05}
        started.append(Running(AtroposSink(AtroposOptions(**{**chosen, **options}))))
        return started[-1]

    yield begin_sink
    for running in started:
        if not running.task.done():
            await running.stop()


@pytest.fixture
def put(ledger: Ledger) -> Callable[..., list[str]]:
    """Publishes one group of four; returns its trajectory ids."""

    def put_group(name: str, scores=(1.0, 0.0, 0.5, 0.0), change=lambda record: record):
        jobs = [make_job(instance=name, sample=n, size=len(scores)) for n in range(len(scores))]
        enqueue(ledger, *jobs)
        for job, score in zip(jobs, scores, strict=True):
            granted = begin(ledger, job)
            publish(ledger, change(make_record(job, score, epoch=granted.epoch)))
        return [job.trajectory_id for job in jobs]

    return put_group
