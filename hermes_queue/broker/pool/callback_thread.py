"""The thread on which everything of Celery's runs that waits for Redis."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hermes_queue.broker.pool.running import RunningTask, acknowledge_all


class CallbackThread:
    """Runs functions in the order in which they come; acknowledges all waiting messages at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hermes-callback")
        self._unacknowledged: deque[tuple[RunningTask, asyncio.Future[None]]] = deque()

    def submit(self, function: Callable[..., object], *args: Any) -> Future[object]:
        """Run `function` on the thread. Thread-safe."""
        return self._thread.submit(function, *args)

    async def acknowledge(self, task: RunningTask) -> None:
        """Acknowledge the message of `task` together with others that wait. On the loop only."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._unacknowledged.append((task, done))
        if len(self._unacknowledged) == 1:  # otherwise the thread has yet to take those before it
            self._thread.submit(self._acknowledge_waiting)
        await done

    def close(self) -> None:
        """End the thread; what has not begun is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _acknowledge_waiting(self) -> None:
        waiting = []
        while self._unacknowledged:
            waiting.append(self._unacknowledged.popleft())
        try:
            acknowledge_all([task for task, _ in waiting])
        finally:
            self._loop.call_soon_threadsafe(_resolve, [done for _, done in waiting])


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():  # its job may have been cancelled
            waiter.set_result(None)
