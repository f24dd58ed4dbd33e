"""Groups read ahead of their use, one at a time or in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import HermesQueueError
from hermes_queue.results.reader import DeliveredGroup

GroupSource = AbstractAsyncContextManager[AsyncIterator[DeliveredGroup]]


class ReadAhead:
    """Reads up to `size` groups ahead in a background task. An async context manager.

    When the context ends, groups that were read and not taken are given back, so that another
    consumer gets them soon. `source` stays open until then, so groups that were taken can still
    be acknowledged after the last one was delivered.
    """

    def __init__(self, source: GroupSource, size: int) -> None:
        self._source = source
        self._queue: asyncio.Queue[DeliveredGroup | None] = asyncio.Queue(max(1, size))
        self._task: asyncio.Task[None] | None = None
        self._in_hand: DeliveredGroup | None = None
        """A group that was delivered but does not fit into the queue yet."""

    async def __aenter__(self) -> ReadAhead:
        self._task = asyncio.create_task(self._read(await self._source.__aenter__()))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            await end_tasks(self._task)
        # The task may have been cancelled in `put`: then its group is in neither the queue nor the
        # caller's hands, and would stay pending until it is stale.
        left = [self._in_hand]
        while not self._queue.empty():
            left.append(self._queue.get_nowait())
        for group in filter(None, left):
            with suppress(HermesQueueError):  # it is delivered again once it is stale
                await group.nack(counted=False)  # the caller never saw it
        await self._source.__aexit__(None, None, None)

    async def take(self, timeout_s: float | None = None) -> DeliveredGroup | None:
        """The next group; None at the end.

        Raises:
            HermesQueueError: the background task failed.
            TimeoutError: none came within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            group = await self._queue.get()
        if group is None:
            self._queue.put_nowait(None)  # the next call also returns None
            if self._task:
                await self._task
        return group

    async def batches(self, size: int, wait_s: float) -> AsyncIterator[list[DeliveredGroup]]:
        """Yield lists of `size` groups; after `wait_s`, a shorter or empty list."""
        loop = asyncio.get_running_loop()
        while True:
            batch: list[DeliveredGroup] = []
            until = loop.time() + wait_s
            ended = False
            while len(batch) < size and not ended:
                try:
                    async with asyncio.timeout_at(until):
                        group = await self._queue.get()
                except TimeoutError:
                    break
                ended = group is None
                if group is not None:
                    batch.append(group)
            if ended:
                if batch:
                    yield batch
                self._queue.put_nowait(None)
                await self.take()
                return
            yield batch

    async def _read(self, groups: AsyncIterator[DeliveredGroup]) -> None:
        try:
            async for group in groups:
                self._in_hand = group
                await self._queue.put(group)
                self._in_hand = None
        except Exception:
            await self._queue.put(None)
            raise
        await self._queue.put(None)


@asynccontextmanager
async def in_batches(
    source: GroupSource, size: int, wait_s: float
) -> AsyncIterator[AsyncIterator[list[DeliveredGroup]]]:
    """Lists of up to `size` groups; one, possibly empty, at least every `wait_s`."""
    async with ReadAhead(source, size) as ahead:
        yield ahead.batches(size, wait_s)
