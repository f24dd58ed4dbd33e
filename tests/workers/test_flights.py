"""Trajectories wait until their contexts fit into the engine that they call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis_server import RedisServer

from benchmarks.capped_endpoint import CappedEndpoint
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.endpoint.limiter import Unlimited
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.flights import EngineState, engine_state
from hermes_queue.models import Usage
from hermes_queue.settings import EngineSettings, LeaseSettings
from workers.calls.admission import FlightLimiter, in_flight
from workers.calls.flights import ENGINES_MOST, FleetFlights

Make = Callable[..., FleetFlights]


def page(blocks: int = 1000) -> str:
    """Of an engine whose cache holds so many blocks of 16 tokens."""
    return f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0\n'


@pytest.fixture
async def make(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    made: list[FleetFlights] = []
    # However long the first reading takes here, with the import of the SDK, it is waited for.
    monkeypatch.setattr("hermes_queue.ledger.fleet.flights.PROBE_S", 60.0)
    monkeypatch.setattr("workers.calls.flights.READ_TIMEOUT_S", 60.0)

    def make(**settings: object) -> FleetFlights:
        chosen = {"interval_s": 0.1, "min_trajectories": 1, "fill": 1.0, **settings}
        section = EngineSettings(**chosen)  # type: ignore[arg-type]
        connect = lambda: Ledger.connect(redis_server.url, timeout_s=2)  # noqa: E731
        made.append(FleetFlights(connect, section, LeaseSettings()))
        return made[-1]

    yield make
    for flights in made:
        await flights.close()
    await close_clients()


@pytest.fixture
async def engine() -> AsyncIterator[CappedEndpoint]:
    async with CappedEndpoint(100, (0, 0), metrics=page) as endpoint:
        yield endpoint


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def state(server: RedisServer, endpoint: CappedEndpoint) -> EngineState | None:
    with server.client(decode_responses=False) as client:
        return engine_state(Ledger(client), endpoint.url)


class Trajectory:
    """Makes one call of so many tokens, and stays in flight until it may end."""

    def __init__(self, flights: FleetFlights, name: str) -> None:
        self.admission = FlightLimiter(Unlimited(), flights, name)
        self.called = asyncio.Event()
        self.end = asyncio.Event()
        self.waited_s = 0.0

    async def run(self, url: str, tokens: int = 6000) -> None:
        with in_flight(self.admission):
            await self.call(url, tokens)
            self.called.set()
            await self.end.wait()

    async def call(self, url: str, tokens: int = 6000) -> None:
        async with self.admission.slot(url, "m", estimate_tokens=tokens) as permit:
            self.waited_s = permit.waited_s
            permit.settle(Usage(prompt_tokens=tokens))


async def test_a_trajectory_waits_for_room_also_in_another_process(make, engine, redis_server):
    flights = [make(), make()]
    some = [Trajectory(flights[n % 2], f"t{n}") for n in range(4)]
    async with asyncio.TaskGroup() as group:
        for each in some:
            group.create_task(each.run(engine.url))

        async def two_fly() -> bool:
            found = await state(redis_server, engine)
            return found is not None and (found.flying, found.waiting) == (2, 2)

        await until(two_fly)
        assert sum(each.called.is_set() for each in some) <= 2
        for each in some:
            each.end.set()
    assert all(each.called.is_set() for each in some)
    assert max(each.waited_s for each in some) > 0

    async def nobody_flies() -> bool:
        found = await state(redis_server, engine)
        return found is not None and (found.flying, found.waiting, found.tokens) == (0, 0, 0)

    await until(nobody_flies)


async def test_one_that_outgrows_the_cache_waits_at_its_next_call(make, engine, redis_server):
    flights = make()
    old, young = Trajectory(flights, "old"), Trajectory(flights, "young")
    with in_flight(old.admission), in_flight(young.admission):
        await old.call(engine.url, 5000)
        await young.call(engine.url, 5000)
        await old.call(engine.url, 15_000)

        async def young_is_stopped() -> bool:
            found = await state(redis_server, engine)
            return found is not None and found.flying == 1

        async def its_process_knows() -> bool:
            found = await state(redis_server, engine)
            return found is not None and found.tokens == 15_001

        await until(young_is_stopped)
        await old.call(engine.url, 15_001)
        await until(its_process_knows)
        waiting = asyncio.create_task(young.call(engine.url, 5100))

        async def young_waits() -> bool:
            found = await state(redis_server, engine)
            return found is not None and found.waiting == 1

        await until(young_waits)
        assert not waiting.done()
        with in_flight(old.admission):  # its agent has ended
            pass
        await waiting


async def test_calls_outside_of_the_agents_time_wait_for_nothing(make, engine):
    judge = Trajectory(make(), "t")
    await judge.call(engine.url, 10**9)
    assert engine.readings == 0


async def test_an_endpoint_without_metrics_is_asked_once(make, engine, redis_server):
    engine.metrics = None
    flights = make()
    for n in range(3):
        each = Trajectory(flights, f"t{n}")
        with in_flight(each.admission):
            await each.call(engine.url, 10**9)
    assert (await state(redis_server, engine)).flying == 0


@pytest.mark.parametrize(
    "lie",
    ["vllm:cache_config_info{", "x" * (5 << 20), page(10**15), page(0)],
    ids=["cut off", "too large", "too much", "nothing"],
)
async def test_an_endpoint_that_lies_stops_nobody(make, engine, lie):
    engine.metrics = lambda: lie
    flights = make()
    async with asyncio.timeout(60):
        for n in range(3):
            await Trajectory(flights, f"t{n}").call(engine.url, 10**6)
            each = Trajectory(flights, f"u{n}")
            with in_flight(each.admission):
                await each.call(engine.url, 10**6)


async def test_the_limit_stays_while_the_metrics_fail(make, engine, redis_server):
    flights = make()
    first, second = Trajectory(flights, "first"), Trajectory(flights, "second")
    with in_flight(first.admission):
        await first.call(engine.url, 15_000)
        engine.metrics = None
        waiting = asyncio.create_task(second.run(engine.url, 15_000))
        readings = engine.readings

        async def waits() -> bool:
            found = await state(redis_server, engine)
            return found is not None and found.waiting == 1

        await until(waits)
        assert not second.called.is_set()
    second.end.set()
    await waiting
    assert engine.readings == readings


async def test_nobody_waits_while_redis_is_away(make, engine, redis_server):
    flights = make()
    first = Trajectory(flights, "first")
    with in_flight(first.admission):
        await first.call(engine.url, 15_000)
        redis_server.stop()
        async with asyncio.timeout(60):
            for n in range(3):
                each = Trajectory(flights, f"t{n}")
                with in_flight(each.admission):
                    await each.call(engine.url, 15_000)


async def test_one_that_has_waited_for_too_long_goes_ahead(make, engine, caplog):
    flights = make(max_wait_s=0.3)
    first, second = Trajectory(flights, "first"), Trajectory(flights, "second")
    with in_flight(first.admission), in_flight(second.admission):
        await first.call(engine.url, 15_000)
        await second.call(engine.url, 15_000)
    assert "second has waited for" in caplog.text


async def test_one_that_is_cancelled_leaves_the_queue(make, engine, redis_server):
    flights = make()
    first, second = Trajectory(flights, "first"), Trajectory(flights, "second")
    with in_flight(first.admission):
        await first.call(engine.url, 15_000)
        waiting = asyncio.create_task(second.run(engine.url, 15_000))

        async def waits() -> bool:
            found = await state(redis_server, engine)
            return found is not None and found.waiting == 1

        await until(waits)
        waiting.cancel()

        async def left() -> bool:
            return (await state(redis_server, engine)).waiting == 0

        await until(left)


async def test_nothing_connects_before_the_first_call(make):
    def refuse() -> Ledger:
        raise AssertionError("connected")

    flights = FleetFlights(refuse, EngineSettings(), LeaseSettings())
    with in_flight(FlightLimiter(Unlimited(), flights, "t")):
        pass
    await flights.close()
    off = FleetFlights(refuse, EngineSettings(admission="off"), LeaseSettings())
    assert off.engine("http://127.0.0.1:1/v1") is None


async def test_endpoints_that_jobs_name_take_few_threads_and_are_forgotten(make):
    flights = make()

    async def call(number: int) -> None:
        limiter = FlightLimiter(Unlimited(), flights, f"t{number}")
        with in_flight(limiter):
            async with limiter.slot(f"http://127.0.0.1:9/{number}", "m"):
                pass

    for first in range(0, 3 * ENGINES_MOST, ENGINES_MOST // 2):
        await asyncio.gather(*map(call, range(first, first + ENGINES_MOST // 2)))
    assert sum(each.name.startswith("flights") for each in threading.enumerate()) < 8
    assert len(flights._engines) <= 2 * ENGINES_MOST


async def test_nobody_waits_if_redis_is_away_before_the_first_call(make, engine, redis_server):
    flights = make()
    redis_server.stop()
    async with asyncio.timeout(60):
        for n in range(2):
            each = Trajectory(flights, f"t{n}")
            with in_flight(each.admission):
                await each.call(engine.url, 15_000)


async def test_the_event_loop_does_not_wait_for_the_connection(engine, redis_server):
    threads: list[threading.Thread] = []

    def connect() -> Ledger:
        threads.append(threading.current_thread())
        return Ledger.connect(redis_server.url, timeout_s=2)

    flights = FleetFlights(connect, EngineSettings(), LeaseSettings())
    for n in range(2):
        each = Trajectory(flights, f"t{n}")
        with in_flight(each.admission):
            await each.call(engine.url)
    await flights.close()
    await close_clients()
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
