"""Places of stages: who has one, who waits, and what the wait counts towards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
from redis_server import RedisServer

from hermes_queue.errors import DeadlineExceeded, EnvBug, Stage
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.limiter import EndpointLimits, limit_name
from hermes_queue.settings import StageSettings
from workers.clock import Clock
from workers.stages.places import ENDPOINT, StagePlaces

Make = Callable[..., StagePlaces]


@pytest.fixture
async def make(redis_server: RedisServer) -> AsyncIterator[Make]:
    made: list[StagePlaces] = []

    def make(**limits: int) -> StagePlaces:
        places = StagePlaces.from_settings(redis_server.url, StageSettings(**limits))
        assert places is not None
        made.append(places)
        return places

    yield make
    for places in made:
        await places.close()


def clock(places: StagePlaces, total_s: float = 60.0) -> Clock:
    its = Clock(total_s, places=places)
    its.start()
    return its


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


class Crowd:
    """Attempts that go through all stages; knows how many were in each at once.

    `full`: so many have to be in a stage at once before one leaves it.
    """

    def __init__(self, **full: int) -> None:
        self.full = full
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def attempt(self, places: StagePlaces, rounds: int = 1) -> None:
        its = clock(places)
        for name in ("setup", "agent", "verify") * rounds:
            async with its.stage(cast(Stage, name), limit_s=30.0):
                self.inside[name] += 1
                self.most[name] = max(self.most[name], self.inside[name])
                while self.most[name] < self.full.get(name, 0):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.002)
                self.inside[name] -= 1


class Held:
    """An attempt that is in a stage, or waits for it, until it may go on."""

    def __init__(self, its: Clock, name: Stage) -> None:
        self.clock, self.name, self.go = its, name, asyncio.Event()
        self.inside = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.clock.stage(self.name, limit_s=30.0):
            self.inside.set()
            await self.go.wait()

    async def end(self) -> None:
        self.go.set()
        await self.task


def test_without_a_limit_nothing_is_counted(redis_server: RedisServer) -> None:
    assert StagePlaces.from_settings(redis_server.url, StageSettings()) is None


async def test_no_more_attempts_are_in_a_stage_than_it_has_places(make: Make) -> None:
    most = {"setup": 5, "agent": 2, "verify": 1}
    places, crowd = make(**most), Crowd(**most)
    async with asyncio.timeout(60):
        await asyncio.gather(*(crowd.attempt(places) for _ in range(20)))
    assert crowd.most == most


async def test_tasks_of_several_steps_never_wait_for_each_other(make: Make) -> None:
    places, crowd = make(setup=1, agent=1, verify=1), Crowd()
    async with asyncio.timeout(60):
        await asyncio.gather(*(crowd.attempt(places, rounds=3) for _ in range(8)))
    assert set(crowd.most.values()) == {1}


async def test_workers_share_the_places_of_the_fleet(make: Make) -> None:
    crowd = Crowd(agent=3)
    workers = [make(fleet_agent=3) for _ in range(3)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(crowd.attempt(each) for each in workers for _ in range(6)))
    assert crowd.most["agent"] == 3
    assert not workers[0].limits("verify")


async def test_the_wait_counts_towards_no_deadline_and_is_in_the_stage_seconds(make: Make) -> None:
    places = make(agent=1)
    first = Held(clock(places), "agent")
    await first.inside.wait()
    its = clock(places, total_s=0.5)
    second = Held(its, "agent")
    await until(lambda: its.shown == "agent_wait")
    await asyncio.sleep(0.6)  # longer than the whole attempt may take
    await first.end()
    await second.inside.wait()
    assert its.shown == "agent"
    await second.end()
    assert its.used_s < 0.5
    assert its.stage_seconds["agent_wait"] > 0.5 > its.stage_seconds["agent"]


async def test_a_stage_has_its_whole_limit_after_the_wait(make: Make) -> None:
    places = make(verify=1)
    first = Held(clock(places), "verify")
    await first.inside.wait()
    its = clock(places)

    async def hang() -> None:
        async with its.stage("verify", limit_s=0.05):
            await asyncio.Event().wait()

    second = asyncio.create_task(hang())
    await until(lambda: its.waits_for == "verify")
    await asyncio.sleep(0.1)
    assert not second.done()
    await first.end()
    with pytest.raises(DeadlineExceeded) as ended:
        await second
    assert ended.value.stage == "verify"


@pytest.mark.parametrize("limit", ["agent", "fleet_agent"])
async def test_who_is_cancelled_while_waiting_takes_no_place(make: Make, limit: str) -> None:
    places = make(**{limit: 1})
    first = Held(clock(places), "agent")
    await first.inside.wait()
    given_up = clock(places)
    second = Held(given_up, "agent")
    await until(lambda: given_up.waits_for == "agent")
    second.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second.task
    third = Held(clock(places), "agent")
    await first.end()
    await asyncio.wait_for(third.inside.wait(), 30)
    await third.end()


@pytest.mark.parametrize("limit", ["agent", "fleet_agent"])
async def test_who_fails_in_a_stage_gives_its_place_back(make: Make, limit: str) -> None:
    places = make(**{limit: 1})

    async def fail() -> None:
        async with clock(places).stage("agent", limit_s=30.0):
            raise ValueError("broken")

    with pytest.raises(EnvBug, match="broken"):
        await fail()
    after = Held(clock(places), "agent")
    await asyncio.wait_for(after.inside.wait(), 30)
    await after.end()


@pytest.mark.parametrize("limit", ["agent", "fleet_agent"])
async def test_a_stage_that_fails_as_it_begins_gives_its_place_back(make: Make, limit: str) -> None:
    places = make(**{limit: 1})
    its = clock(places)

    def fail(_: Stage) -> None:
        raise ValueError("broken")

    its.on_stage = fail
    with pytest.raises(ValueError, match="broken") as kept:
        async with its.stage("agent", limit_s=30.0):
            pass
    after = Held(clock(places), "agent")
    await asyncio.wait_for(after.inside.wait(), 5)
    await after.end()
    assert kept.tb is not None, "or it would have been given back with the last reference"


async def test_who_is_cancelled_again_while_it_gives_up_keeps_no_place(make: Make) -> None:
    places = make(agent=1, fleet_agent=1)
    first = Held(clock(places), "agent")
    await first.inside.wait()
    given_up = clock(places)
    second = Held(given_up, "agent")
    await until(lambda: given_up.waits_for == "agent")
    first.go.set()
    while not second.task.done():
        second.task.cancel()
        await asyncio.sleep(0)
    await first.task
    third = Held(clock(places), "agent")
    await asyncio.wait_for(third.inside.wait(), 5)
    await third.end()


async def test_the_places_of_the_fleet_are_listed_among_the_limits(
    make: Make, redis_server: RedisServer
) -> None:
    places = make(fleet_verify=4)
    held = Held(clock(places), "verify")
    await held.inside.wait()
    with redis_server.client(decode_responses=False) as client:
        found = EndpointLimits(Ledger(client)).state(limit_name(ENDPOINT, "verify"))
    assert found is not None
    assert (found.limit, found.leased) == (4, 1)
    places.renew()
    await held.end()
