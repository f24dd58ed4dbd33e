"""Cancellations that redis-py loses."""

from __future__ import annotations

import asyncio


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
