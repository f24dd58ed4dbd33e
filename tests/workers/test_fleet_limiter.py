"""Leave to call a model endpoint, as the coroutines of a worker get it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis_server import RedisServer

from hermes_queue.errors import ModelError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.limiter import EndpointLimits, LimitState, limit_name
from hermes_queue.models import Usage
from hermes_queue.settings import LeaseSettings, LimiterSettings
from workers.calls.fleet_limiter import FleetLimiter

URL = "http://127.0.0.1:1/v1"
Make = Callable[..., FleetLimiter]


@pytest.fixture
async def make(redis_server: RedisServer) -> AsyncIterator[Make]:
    made: list[FleetLimiter] = []

    def make(*, lease_s: float = 40.0, **settings: float) -> FleetLimiter:
        section = LimiterSettings(**settings)  # type: ignore[arg-type]
        lease = LeaseSettings(duration_s=lease_s)
        made.append(FleetLimiter(redis_server.url, section, lease))
        return made[-1]

    yield make
    for limiter in made:
        await limiter.close()


async def state(server: RedisServer) -> LimitState:
    """Of the one limit that these tests use."""
    with server.client(decode_responses=False) as client:
        found = EndpointLimits(Ledger(client)).state(limit_name(URL, "m"))
    assert found is not None
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


class Crowd:
    """Many calls at once; knows how many have leave."""

    def __init__(self) -> None:
        self.inside = self.most = self.done = 0
        self.go = asyncio.Event()

    async def call(self, limiter: FleetLimiter) -> None:
        async with limiter.slot(URL, "m") as permit:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await self.go.wait()
            self.inside -= 1
            self.done += 1
            permit.settle(Usage())


async def test_all_workers_together_make_no_more_calls_than_the_limit(
    make: Make, redis_server: RedisServer
) -> None:
    limiters = [make(start_calls=3, max_calls=3) for _ in range(2)]
    crowd = Crowd()
    async with asyncio.TaskGroup() as group:
        for n in range(12):
            group.create_task(crowd.call(limiters[n % 2]))

        async def all_asked() -> bool:
            return crowd.inside == 3 and (await state(redis_server)).waiting == 9

        await until(all_asked)
        crowd.go.set()
    assert (crowd.most, crowd.done) == (3, 12)


async def test_a_waiter_that_is_cancelled_leaves_the_line(
    make: Make, redis_server: RedisServer
) -> None:
    limiter = make(start_calls=1, max_calls=1)
    async with limiter.slot(URL, "m"):
        crowd = Crowd()
        task = asyncio.create_task(crowd.call(limiter))

        async def waits() -> bool:
            return (await state(redis_server)).waiting == 1

        await until(waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def gone() -> bool:
            return (await state(redis_server)).waiting == 0

        await until(gone)


async def test_calls_cancelled_at_any_moment_leave_nothing_behind(
    make: Make, redis_server: RedisServer
) -> None:
    limiter = make(start_calls=2, max_calls=2)
    tasks = [asyncio.create_task(Crowd().call(limiter)) for _ in range(40)]
    for n, task in enumerate(tasks):
        await asyncio.sleep(0.002 * (n % 3))
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    async def empty() -> bool:
        found = await state(redis_server)
        return found.leased == found.waiting == 0

    await until(empty)


async def test_a_pause_that_one_worker_hears_of_is_honoured_by_another(make: Make) -> None:
    one, other = make(), make()
    async with one.slot(URL, "m") as permit:
        permit.refused(0.5, paused=True)
    began = time.monotonic()
    while one._background:
        await asyncio.sleep(0.01)

    async def wait() -> float:
        async with other.slot(URL, "m") as permit:
            return permit.waited_s

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    asked = time.monotonic()  # not before it began to count
    waited_s = await waiting
    assert time.monotonic() - began >= 0.5
    assert waited_s >= 0.5 - (asked - began)


async def test_nobody_can_stop_the_fleet_for_longer_than_it_waits(
    make: Make, redis_server: RedisServer
) -> None:
    async with make(max_wait_s=30.0).slot(URL, "m") as permit:
        permit.refused(1e9)

    async def paused() -> bool:
        return (await state(redis_server)).pause_s > 0

    await until(paused)
    assert (await state(redis_server)).pause_s <= 30


async def test_a_refusal_is_told_to_the_fleet(make: Make, redis_server: RedisServer) -> None:
    limiter = make(start_calls=10)
    async with limiter.slot(URL, "m") as permit:
        permit.refused(None)

    async def smaller() -> bool:
        found = await state(redis_server)
        return found.refused == 1 and found.limit < 10

    await until(smaller)


async def test_backoff_is_part_of_the_wait(make: Make) -> None:
    async with make().slot(URL, "m", delay_s=0.2) as permit:
        assert permit.waited_s >= 0.2


async def test_there_is_an_end_to_waiting(make: Make) -> None:
    limiter = make(start_calls=1, max_calls=1, max_wait_s=0.2)
    async with limiter.slot(URL, "m"):
        with pytest.raises(ModelError, match="no call permitted"):
            async with limiter.slot(URL, "m"):
                raise AssertionError("there was one place only")


async def test_leases_of_calls_that_go_on_are_renewed(
    make: Make, redis_server: RedisServer
) -> None:
    limiter = make(lease_s=600)
    key = f"hq:limit:{limit_name(URL, 'm')}:leases"
    async with limiter.slot(URL, "m"):
        with redis_server.client() as client:
            [(request, end)] = client.zrange(key, 0, -1, withscores=True)
            client.zadd(key, {request: end - 500})
            await asyncio.to_thread(limiter.renew)
            assert client.zscore(key, request) >= end


async def go_on_without_redis(
    limiter: FleetLimiter, take_away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Three calls are in flight when Redis goes; nine more come, and all are made."""
    before, after = Crowd(), Crowd()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(before.call(limiter))
        while before.inside < 3:
            await asyncio.sleep(0.01)
        caplog.clear()  # on a busy machine one of the three may have warned, too
        take_away()
        for _ in range(9):
            group.create_task(after.call(limiter))

        async def warned() -> bool:
            return "while Redis is away" in caplog.text

        await until(warned)
        before.go.set()

        async def full() -> bool:
            return after.inside == 3

        await until(full)
        after.go.set()
    assert (after.most, after.done) == (3, 9)
    assert caplog.text.count("while Redis is away") == 1


async def counts_again(limiter: FleetLimiter, server: RedisServer) -> None:
    async def counted() -> bool:
        async with limiter.slot(URL, "m") as permit:
            return bool(permit.leased)  # type: ignore[attr-defined]

    await until(counted)

    async def empty() -> bool:
        found = await state(server)
        return found.leased == found.waiting == 0

    await until(empty)


async def test_while_redis_is_away_as_many_calls_go_on_as_were_in_flight(
    make: Make, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(redis_grace_s=0.2)
    await go_on_without_redis(limiter, redis_server.kill9, caplog)
    redis_server.start()
    await counts_again(limiter, redis_server)


async def test_a_redis_that_hangs_stops_nobody_and_keeps_nothing_afterwards(
    make: Make, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(redis_grace_s=0.2, lease_s=600)
    process = redis_server.process
    assert process is not None
    try:
        await go_on_without_redis(limiter, lambda: process.send_signal(signal.SIGSTOP), caplog)
    finally:
        process.send_signal(signal.SIGCONT)
    await counts_again(limiter, redis_server)
