"""Cancellations: those that libraries swallow, ending tasks despite them, finishing work first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class Cancellation:
    """Detects a cancellation of the current task that was never raised.

    redis-py sends through `asyncio.wait_for`, which before Python 3.12 can swallow one that arrives
    as it finishes (python/cpython#86296), and reports one in the middle of a reply as an outage.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._count = self._task.cancelling() if self._task else 0

    @property
    def is_ours(self) -> bool:
        """Whether the calling task is the one that this object watches."""
        return asyncio.current_task() is self._task

    def raise_if_swallowed(self) -> None:
        """In the task that created the object, raise a CancelledError that was swallowed since."""
        task = asyncio.current_task()
        if task and task is self._task and task.cancelling() > self._count:
            raise asyncio.CancelledError


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks repeatedly until they have ended, in whatever way.

    Once is not enough: redis-py, see `Cancellation`, and the bridge of Modal's SDK put errors of
    their own in its place, and a loop that waits out such failures would never end.
    """
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=1.0)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved


async def unbroken(work: Awaitable[T]) -> T:
    """Finish `work` even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    done = task.result()
    if cancelled is not None:
        raise cancelled
    return done
