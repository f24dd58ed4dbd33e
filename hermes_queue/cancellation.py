"""Cancellations that libraries lose: noticing that in a task, and ending tasks all the same."""

from __future__ import annotations

import asyncio
from typing import Any


class Cancellation:
    """Notices that our task was cancelled although nothing was raised.

    redis-py sends through `asyncio.wait_for`, which before Python 3.12 can swallow a
    cancellation that comes as it ends (python/cpython#86296), and reports one in the middle
    of an answer as an outage.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._count = self._task.cancelling() if self._task else 0

    @property
    def is_ours(self) -> bool:
        """Whether it is about the task that asks."""
        return asyncio.current_task() is self._task

    def raise_if_swallowed(self) -> None:
        """Raise what was lost, in the task that this was made in.

        Raises:
            asyncio.CancelledError: the task was cancelled since.
        """
        task = asyncio.current_task()
        if task and task is self._task and task.cancelling() > self._count:
            raise asyncio.CancelledError


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks until they have ended, however they end.

    More than once: redis-py can report a cancellation in the middle of an answer as an outage
    (python/cpython#86296), and the bridge of Modal's SDK raises in place of it what the SDK raises
    in that moment. Loops that wait such failures out would go on for ever.
    """
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=1.0)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio complains that nobody asked for it
