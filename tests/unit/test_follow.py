"""Following a run ends, whatever the libraries below do with a cancellation."""

from __future__ import annotations

import asyncio

from producers.follow import _end


async def test_a_task_that_swallows_one_cancellation_ends_all_the_same():
    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(3600)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await _end([task])
    assert task.cancelled()
