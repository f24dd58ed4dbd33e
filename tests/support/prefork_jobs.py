"""A Celery application of somebody's own, with prefork, whose tasks use Modal sandboxes.

The parent leases a slot before it forks; what it has is named to the children by id.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import redis
from celery import Celery, signals

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import ExecutionRequest, SlotSpec
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.settings import ModalSettings

app = Celery("prefork_jobs", broker=os.environ.get("PREFORK_BROKER"))
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1)
parent: dict[str, object] = {}


def make(name: str) -> ModalBackend:
    return ModalBackend(
        ModalSettings(creates_per_s=1000.0),
        slots=1,
        cache=Path(os.environ["PREFORK_CACHE"]),
        labels={"worker": name},
    )


def write_fact(**facts: object) -> None:
    with redis.Redis.from_url(os.environ["PREFORK_FACTS"]) as client:
        client.rpush("facts", json.dumps({"pid": os.getpid(), **facts}))


@signals.worker_init.connect
def before_the_fork(**_: object) -> None:
    async def lease() -> None:
        backend = make("parent")
        await backend.start()
        slot = await backend.acquire("t", SlotSpec())
        parent.update(backend=backend, slot=slot)
        backend._tender.cancel()  # its loop ends here

    asyncio.run(lease())
    write_fact(what="parent", sandbox=parent["slot"].sandbox_id)


@app.task(name="run")
def run(text: str) -> None:
    """A slot of the child's own, from the first call of the SDK to the end."""

    async def body() -> None:
        backend = make(f"child-{os.getpid()}")
        await backend.start()
        try:
            slot = await backend.acquire("t", SlotSpec())
            [result] = await backend.execute_batch([ExecutionRequest(slot, f"echo {text}")])
            write_fact(what="run", said=result.stdout.decode().strip())
        finally:
            await backend.stop()

    asyncio.run(body())


@app.task(name="inherited")
def inherited() -> None:
    """Objects that the parent started refuse to work in a child."""
    try:
        asyncio.run(parent["backend"].acquire("t", SlotSpec()))
    except SandboxError as error:
        write_fact(what="inherited", error=str(error))


@app.task(name="end")
def end(sandbox_id: str) -> None:
    """End by its id what another process has made."""

    async def body() -> None:
        backend = make("reaper")
        known = [info.sandbox_id for info in await backend.list_sandboxes({"worker": "parent"})]
        await backend.terminate(sandbox_id)
        left = [info.sandbox_id for info in await backend.list_sandboxes({"worker": "parent"})]
        write_fact(what="end", known=known, left=left)

    asyncio.run(body())
