"""Slots that are full of files: an engine that takes long for them is told from one that hangs."""

from __future__ import annotations

import asyncio
import signal

import pytest
from container_engines import BASE

from hermes_plugins.containers import stock
from hermes_plugins.containers.docker import engine as docker
from hermes_plugins.containers.images import client
from hermes_queue.errors import SandboxError
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.image_slots import TooManyChanges

SPEC = SlotSpec(image=ImageSpec(BASE))


@pytest.fixture
def no_time(monkeypatch):
    """A list of changes takes longer than it may."""
    monkeypatch.setattr(docker, "LIST_ROUNDS", 1)
    monkeypatch.setattr(docker, "LIST_ROUND_S", 0.0)


async def test_files_that_are_not_listed_in_time_may_be_the_agents_doing(bench, no_time):
    slot = await bench.slot(SPEC)
    with pytest.raises(FilesRefused, match="were not listed in"):
        await bench.backend.changes(slot)
    assert await bench.out(slot, "echo alive") == "alive"


async def test_an_engine_that_hangs_is_no_doing_of_the_agents(bench, engine, no_time, monkeypatch):
    slot = await bench.slot(SPEC)
    monkeypatch.setattr(docker, "ANSWER_S", 0.1)
    engine.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(SandboxError) as raised:
            await bench.backend.changes(slot)
    finally:
        engine.process.send_signal(signal.SIGCONT)
    assert type(raised.value) is SandboxError


async def test_a_list_that_is_too_long_to_be_read_has_too_many_changes(bench, monkeypatch):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "mkdir /srv/{a..z}")
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 100)
    with pytest.raises(TooManyChanges, match="longer than"):
        await bench.backend.changes(slot)
    monkeypatch.undo()


async def test_nobody_waits_for_the_files_of_a_slot_that_has_ended(bench, monkeypatch):
    monkeypatch.setattr(stock, "REMOVE_S", 0.1)
    deleting, may_end = [], asyncio.Event()
    remove = docker.Engine.remove

    async def slow(self, container):
        deleting.append(container)
        await may_end.wait()
        await remove(self, container)

    monkeypatch.setattr(docker.Engine, "remove", slow)
    slot = await bench.slot(SPEC)
    left = slot.sandbox_id
    async with asyncio.timeout(60):
        fresh = await bench.backend.renew(slot)
        assert await bench.out(fresh, "echo alive") == "alive"
        await bench.backend.release(fresh)
    assert left in {each.sandbox_id for each in await bench.backend.list_sandboxes({})}
    may_end.set()
    await bench.backend.stop()
    assert deleting == [left, fresh.sandbox_id]
    assert await bench.backend.list_sandboxes({"worker": bench.backend.labels["worker"]}) == []


async def test_a_worker_starts_where_a_dead_ones_image_is_not_deleted_in_time(
    make_backend, monkeypatch
):
    dead = (await make_backend()).backend
    slot = await dead.acquire("trajectory", SPEC)
    image = await dead.commit(slot)
    dead._leftovers.close()
    asked = []

    async def slow(self, name):
        asked.append(name)
        raise SandboxError("removing an image: TimeoutError")

    with monkeypatch.context() as patch:
        patch.setattr(docker.Engine, "remove_image", slow)
        bench = await make_backend()
    assert asked == [image.reference]
    assert await bench.out(await bench.slot(SPEC), "echo alive") == "alive"
