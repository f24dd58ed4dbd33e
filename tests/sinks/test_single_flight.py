"""One holder at a time, through deaths and outages."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from hermes_queue.cancellation import end_tasks
from hermes_queue.sinks.atropos.single_flight import LeaseLost, single_flight


@pytest.fixture
async def client(redis_server):
    made = redis.asyncio.Redis.from_url(redis_server.url)
    yield made
    await made.aclose()


async def test_the_next_one_holds_it_when_the_first_has_left(client):
    async with single_flight(client, "hq:sink:a"):
        assert 0 < await client.pttl("hq:sink:a") <= 10_000
    assert await client.exists("hq:sink:a") == 0
    async with single_flight(client, "hq:sink:a") as keeper:
        assert not keeper.done()


async def test_what_a_dead_holder_left_expires(client):
    await client.set("hq:sink:a", "dead", px=300)
    async with single_flight(client, "hq:sink:a"):
        assert await client.get("hq:sink:a") != b"dead"


async def test_it_is_renewed_while_it_is_held(client):
    async with single_flight(client, "hq:sink:a", lease_s=4.0):
        last = await client.pttl("hq:sink:a")
        async with asyncio.timeout(60):
            while (left := await client.pttl("hq:sink:a")) <= last:
                last = left
                await asyncio.sleep(0.05)


async def test_the_holder_learns_that_another_one_took_over(client):
    async with single_flight(client, "hq:sink:a", lease_s=0.4) as keeper:
        await client.set("hq:sink:a", "another")
        with pytest.raises(LeaseLost):
            await keeper
    assert await client.get("hq:sink:a") == b"another"


async def test_a_successor_that_comes_during_the_release_keeps_it(client, monkeypatch):
    send = client.execute_command

    async def then_another_takes_it(*command, **options):
        answer = await send(*command, **options)
        monkeypatch.undo()
        await client.set("hq:sink:a", "another")
        return answer

    async with single_flight(client, "hq:sink:a"):
        monkeypatch.setattr(client, "execute_command", then_another_takes_it)
    assert await client.get("hq:sink:a") == b"another"


async def test_who_waits_for_it_can_be_cancelled_at_any_moment(client):
    await client.set("hq:sink:a", "another")

    async def hold():
        async with single_flight(client, "hq:sink:a"):
            pytest.fail("another one holds it")

    for steps in range(12):
        task = asyncio.create_task(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled(), steps


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
