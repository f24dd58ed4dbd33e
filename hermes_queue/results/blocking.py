"""The results stream for programs without asyncio: a thread reads ahead and renews deliveries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from pydantic import PrivateAttr

from hermes_queue.cancellation import end_tasks
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.batches import ReadAhead
from hermes_queue.results.consume import reading
from hermes_queue.results.reader import DeliveredGroup

T = TypeVar("T")


class HeldGroup(TrajectoryGroup):
    """A delivered group. It is ours until it is acknowledged or the consumer is closed."""

    _delivered: DeliveredGroup = PrivateAttr()
    _call: Callable[[Coroutine[Any, Any, None]], None] = PrivateAttr()

    def ack(self) -> None:
        """Acknowledge the group. Repeating the call does nothing.

        Raises:
            RedisUnavailable: the group will be delivered again.
        """
        self._call(self._delivered.ack())

    def nack(self) -> None:
        """Give the group back; a consumer of the group receives it within half a minute.

        Raises:
            RedisUnavailable: the group will be delivered again once this consumer is silent.
        """
        self._call(self._delivered.nack())

    def reject(self, reason: str) -> None:
        """Acknowledge the group and make it a dead letter (`undeliverable`, docs/dead-letters.md).

        Raises:
            RedisUnavailable: the group will be delivered again.
        """
        self._call(self._delivered.reject(reason))

    def without_records(self) -> HeldGroup:
        """The group without its records, so that they need no memory; it can be answered."""
        nothing: dict[str, tuple[()]] = {"members": (), "extras": ()}
        return _held(self._delivered.model_copy(update=nothing), self._call)


class SyncConsumer:
    """An iterator of groups. Close it, or use it in a `with` statement.

    Not thread-safe: use it from one thread at a time.
    """

    def __init__(self, group: str, ahead: int, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="consume", daemon=True)
        self._thread.start()
        try:
            self._ahead = ReadAhead(reading(group, **options), ahead)
            self._call(self._ahead.__aenter__())
        except BaseException:
            self._end()
            raise

    def __iter__(self) -> Iterator[HeldGroup]:
        return self

    def __next__(self) -> HeldGroup:
        delivered = self._call(self._ahead.take()) if self._thread.is_alive() else None
        if delivered is None:
            raise StopIteration
        return _held(delivered, self._call)

    def next_within(self, timeout_s: float) -> HeldGroup | None:
        """The next group; None if none comes within `timeout_s`, or at the end.

        Raises:
            HermesQueueError: see `consume`.
        """
        try:
            delivered = self._call(self._ahead.take(timeout_s))
        except TimeoutError:
            return None
        return None if delivered is None else _held(delivered, self._call)

    def take(self, count: int) -> list[HeldGroup]:
        """The next `count` groups; fewer at the end.

        Raises:
            HermesQueueError: see `consume`.
        """
        return [group for _, group in zip(range(count), self, strict=False)]

    def close(self) -> None:
        """Give back groups that were read ahead; unacknowledged ones become stale. Idempotent."""
        if self._thread.is_alive():
            self._call(self._ahead.__aexit__())
            self._end()

    def _end(self) -> None:
        """End the thread, and what it still runs: an opening that was interrupted, too."""

        async def end() -> None:
            await end_tasks(*(asyncio.all_tasks() - {asyncio.current_task()}))

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> SyncConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # e.g. Ctrl-C: without this, the call would go on in its thread
            future.cancel()
            raise


def consume_sync(group: str, *, ahead: int = 2, **options: Any) -> SyncConsumer:
    """Consume finished groups without asyncio; acknowledge each with `group.ack()`.

    A thread reads and unpacks groups while the caller works. It also renews the groups that the
    caller holds, so that they do not go stale during a long step as long as the process lives.

    Args:
        group: name of the consumer group.
        ahead: number of groups to unpack ahead.
        **options: keyword arguments of `consume`.

    Raises:
        HermesQueueError: as `consume`, during the iteration.
    """
    return SyncConsumer(group, ahead, **{"prefetch": max(1, ahead), "renew": True, **options})


def _held(
    delivered: DeliveredGroup, call: Callable[[Coroutine[Any, Any, None]], None]
) -> HeldGroup:
    held = HeldGroup.model_construct(**dict(delivered))
    held._delivered = delivered
    held._call = call
    return held
