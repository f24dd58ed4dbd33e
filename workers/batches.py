"""Joins what many trajectories have to do in the same moment: one call in a thread for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import accumulate, takewhile
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batches(Generic[T, R]):
    """Passes items to a function in batches, one at a time, in a thread. For one event loop.

    Items that arrive while a batch is under way make the next one. So a batch grows with the load,
    and a lone item waits for nobody.
    """

    def __init__(
        self,
        threads: Executor,
        process: Callable[[Sequence[T]], Sequence[R | BaseException]],
        *,
        most: int,
        weight: Callable[[T], int] = lambda _: 1,
    ) -> None:
        """Prepare. `process` returns a result or an error for each of the items that it gets.

        Together these weigh up to `most`; without `weight`, their number does. One that weighs more
        goes alone.
        """
        self._threads = threads
        self._process = process
        self._most = most
        self._weight = weight
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._busy = False

    def put(self, item: T) -> asyncio.Future[R]:
        """Have `item` processed. That happens even if the future is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._begin)  # what else is ready in this turn of the loop goes with it
        return future

    def _begin(self) -> None:
        weights = accumulate(self._weight(item) for item, _ in self._waiting)
        count = max(1, sum(1 for _ in takewhile(lambda weight: weight <= self._most, weights)))
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._busy = bool(batch)
        if not batch:
            return
        items = [item for item, _ in batch]
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, self._process, items)
        except RuntimeError as error:  # the worker has ended, and its threads with it
            self._answer(batch, [error] * len(batch))
            return
        done.add_done_callback(partial(self._end, batch))

    def _end(
        self,
        batch: Sequence[tuple[T, asyncio.Future[R]]],
        done: asyncio.Future[Sequence[R | BaseException]],
    ) -> None:
        try:
            self._answer(batch, done.result())
        except BaseException as error:  # noqa: BLE001 - whoever waits has to learn of any end
            self._answer(batch, [error] * len(batch))

    def _answer(
        self, batch: Sequence[tuple[T, asyncio.Future[R]]], results: Sequence[R | BaseException]
    ) -> None:
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # its trajectory was cancelled
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        # After those that wake up now: what they hand in next goes with it.
        asyncio.get_running_loop().call_soon(self._begin)
