"""One holder at a time, through deaths and outages."""

from __future__ import annotations

import asyncio

import pytest
from worker_process import wait_until

from hermes_queue.cancellation import end_tasks
from hermes_queue.results import sole_reader
from hermes_queue.sinks.atropos.single_flight import LeaseLost, single_sink

KEY = "hq:sink:a"


@pytest.fixture
def held(ledger):
    """Makes a sink hold, or wait for, the key."""
    return lambda: single_sink("a", ledger.url)


async def test_the_next_one_holds_it_when_the_first_has_left(ledger, held):
    async with held():
        assert 0 < ledger.client.pttl(KEY) <= 10_000
    assert ledger.client.exists(KEY) == 0
    async with held() as keeper:
        assert not keeper.done()


async def test_what_a_dead_holder_left_expires(ledger, held):
    ledger.client.set(KEY, "dead", px=300)
    async with held():
        assert ledger.client.get(KEY) != b"dead"


async def test_it_is_renewed_while_it_is_held(ledger, held, monkeypatch):
    monkeypatch.setattr(sole_reader, "LEASE_S", 2.0)
    async with held():
        last = ledger.client.pttl(KEY)
        async with asyncio.timeout(60):
            while (left := ledger.client.pttl(KEY)) <= last:
                last = left
                await asyncio.sleep(0.05)


async def test_the_holder_learns_that_another_one_took_over(ledger, held, monkeypatch):
    monkeypatch.setattr(sole_reader, "LEASE_S", 0.4)
    async with held() as keeper:
        ledger.client.set(KEY, "host:1:the trainer whose journal is /out")
        with pytest.raises(LeaseLost, match="the trainer whose journal is /out on host took over"):
            await keeper
    assert ledger.client.get(KEY).startswith(b"host:1")


async def test_a_successor_that_came_before_the_release_keeps_it(ledger, held):
    async with held():
        ledger.client.set(KEY, "another")
    assert ledger.client.get(KEY) == b"another"


async def test_who_waits_for_it_can_be_cancelled_at_any_moment(ledger, held):
    ledger.client.set(KEY, "another")

    async def hold():
        async with held():
            pytest.fail("another one holds it")

    for steps in range(6):
        task = asyncio.create_task(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled(), steps


@pytest.mark.fleet
async def test_a_cancelled_wait_takes_nothing_afterwards(ledger, held):
    async def hold():
        async with held():
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await end_tasks(task)
    # A thread that nobody waits for any more gives the key back.
    await asyncio.to_thread(wait_until, "the key is free", lambda: not ledger.client.exists(KEY))


async def test_a_task_that_swallows_its_cancellation_is_cancelled_again():
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end_tasks(task)
    assert task.done()
