"""Work of many trajectories that is ready in the same moment is done in one go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from workers.batches import Batches


class Work:
    """Doubles numbers; each batch waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int | BaseException]:
        self.batches.append(list(items))
        self.begun.set()
        assert self.gate.wait(30)
        if 13 in items:
            raise ZeroDivisionError
        return [ValueError(f"{each} is odd") if each % 2 else 2 * each for each in items]


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def batches(work):
    with ThreadPoolExecutor(1) as threads:
        yield Batches(threads, work, most=5)
        work.gate.set()


async def test_what_is_ready_in_one_turn_of_the_loop_goes_together(work, batches):
    async def one(number: int) -> int:
        return await batches.put(number)

    assert await asyncio.gather(*map(one, [2, 4, 6])) == [4, 8, 12]
    assert await batches.put(8) == 16
    assert work.batches == [[2, 4, 6], [8]]


async def test_what_arrives_meanwhile_makes_the_next_batches(work, batches):
    work.gate.clear()
    first = batches.put(2)
    await asyncio.to_thread(work.begun.wait, 30)
    later = [batches.put(number) for number in range(4, 18, 2)]
    work.gate.set()
    assert await asyncio.gather(first, *later) == [4, *range(8, 36, 4)]
    assert [len(batch) for batch in work.batches] == [1, 5, 2]


async def test_what_is_heavy_goes_alone_and_has_its_result_at_once(work):
    """A lease that Redis has granted must not wait for the large bodies of others."""
    with ThreadPoolExecutor(1) as threads:
        batches = Batches(threads, work, most=10, weight=lambda number: number)
        futures = [batches.put(number) for number in (2, 4, 40, 4, 6, 2)]
        await futures[1]
        assert not futures[2].done()
        await asyncio.gather(*futures)
    assert work.batches == [[2, 4], [40], [4, 6], [2]]


async def test_an_error_is_that_of_its_item_alone(batches):
    good, bad, other = (batches.put(number) for number in (2, 3, 4))
    assert (await good, await other) == (4, 8)
    with pytest.raises(ValueError, match="3 is odd"):
        await bad


async def test_whoever_waits_learns_that_the_function_failed_and_work_goes_on(batches):
    futures = [batches.put(number) for number in (2, 13)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [ZeroDivisionError] * 2
    assert await batches.put(2) == 4


async def test_an_item_whose_trajectory_is_cancelled_is_done_all_the_same(work, batches):
    futures = [batches.put(number) for number in (2, 4)]
    futures[0].cancel()
    assert await futures[1] == 8
    assert work.batches == [[2, 4]]


async def test_after_the_worker_has_ended_nobody_waits(work):
    threads = ThreadPoolExecutor(1)
    batches = Batches(threads, work, most=5)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        await batches.put(2)
