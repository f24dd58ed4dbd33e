"""Waiting that counts towards no deadline, of one call or of several at once."""

from __future__ import annotations

import asyncio

import pytest

from hermes_queue.agent.budget import Uncounted
from hermes_queue.errors import DeadlineExceeded
from workers.clock import Clock


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([(0, 2), (5, 6)], [2, 1]),
        ([(0, 2), (1, 3)], [2, 1]),
        ([(1, 2), (0, 3)], [1, 2]),
        ([(0, 1), (2, 3), (0, 4)], [1, 1, 2]),
        ([(0, 1), (2, 3), (2.5, 4)], [1, 1, 1]),
        ([(0, 4), (1, 4)], [4, 0]),
    ],
)
def test_time_that_waits_share_counts_once(
    waits: list[tuple[float, float]], seconds: list[float]
) -> None:
    uncounted = Uncounted()
    assert [uncounted.add(*wait) for wait in waits] == seconds


async def test_a_stage_does_not_expire_while_any_of_several_calls_waits() -> None:
    clock = Clock(total_s=60.0)
    clock.start()
    done: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append(name)

    async with clock.stage("agent", limit_s=0.15):
        await asyncio.gather(
            clock.not_counting(lambda: wait("long", 0.3))(),
            clock.not_counting(lambda: wait("short", 0.1))(),
        )
    assert done == ["short", "long"]
    assert clock.used_s >= 0, "the 0.1 s that both waited count once"


async def test_a_stage_has_its_limit_again_after_calls_that_waited_together() -> None:
    clock = Clock(total_s=60.0)
    clock.start()

    async def wait_and_hang() -> None:
        async with clock.stage("agent", limit_s=0.1):
            waits = [clock.not_counting(lambda: asyncio.sleep(0.02))() for _ in range(3)]
            await asyncio.gather(*waits)
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded):
        await wait_and_hang()
