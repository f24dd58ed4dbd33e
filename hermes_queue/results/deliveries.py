"""Pending deliveries of one consumer group, as Redis keeps them."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from hermes_queue.keyspace.connection import explained

_PAGE = 16
_GIVEN_BACK_S = 365 * 86400.0
"""Idle time recorded for a delivery that was given back: stale by any `stale_s`."""

Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""Stream entries: id and fields."""


class Deliveries:
    """Deliveries of `stream` to `consumer` of `group`, and those that it may take over.

    Methods raise redis-py's errors unless their docstring says otherwise.
    """

    def __init__(
        self, client: redis.asyncio.Redis, stream: str, group: str, consumer: str, url: str
    ) -> None:
        self._client: Any = client
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._url = url

    async def read(self, count: int, block_ms: int) -> Entries:
        """Read new entries."""
        answer = await self._client.xreadgroup(
            self._group,
            self._consumer,
            {self._stream: ">"},
            count=count,
            block=block_ms,
        )
        return [entry for _, entries in answer for entry in entries] if answer else []

    async def page(
        self, cursor: str, *, idle_ms: int | None = None, ours: bool = False
    ) -> tuple[list[bytes], str]:
        """Ids of pending deliveries from `cursor` on, and the next cursor ("" = the end).

        Args:
            cursor: "-" for the beginning, else the cursor returned with the last page.
            idle_ms: only deliveries that were not touched for this long.
            ours: only deliveries of this consumer.
        """
        page = await self._client.xpending_range(
            self._stream,
            self._group,
            min=cursor,
            max="+",
            count=_PAGE,
            consumername=self._consumer if ours else None,
            idle=idle_ms,
        )
        ids = [entry["message_id"] for entry in page]
        return ids, f"({ids[-1].decode()}" if len(ids) == _PAGE else ""

    async def ours(self, at_most: int, after: str = "-") -> list[bytes]:
        """Ids of the pending deliveries of this consumer from the cursor `after` on, see `page`."""
        pending = await self._client.xpending_range(
            self._stream, self._group, after, "+", at_most, self._consumer
        )
        return [entry["message_id"] for entry in pending]

    async def take(self, entry_id: bytes, idle_ms: int) -> Entries:
        """Claim a delivery for this consumer, unless another one has claimed it in the meantime."""
        # `min_idle_time` decides the race: the first claim resets the idle time, so that a second
        # consumer that saw the same stale delivery gets nothing.
        entries = await self._client.xclaim(
            self._stream, self._group, self._consumer, min_idle_time=idle_ms, message_ids=[entry_id]
        )
        return [entry for entry in entries if entry[0] is not None]

    async def hold(self, entry_id: bytes) -> None:
        """Hold a delivery as if it had been made now, without counting another delivery.

        Raises:
            RedisUnavailable, RedisFull: the delivery is unchanged.
        """
        await self._hold(entry_id)

    async def give_back(self, entry_id: bytes, *, counted: bool) -> None:
        """Make a delivery of ours stale, so that it is made again soon. Safe to repeat.

        What was given back already, or what another consumer has taken over, is left alone.

        Args:
            entry_id: the delivery.
            counted: False to record one delivery less.

        Raises:
            RedisUnavailable, RedisFull: the delivery is unchanged.
        """
        with explained(self._url):
            found = await self._client.xpending_range(
                self._stream, self._group, entry_id, entry_id, 1, self._consumer
            )
        given_back_ms = int(1000 * _GIVEN_BACK_S)
        if not found or found[0]["time_since_delivered"] >= given_back_ms:
            return
        before = None if counted else max(0, int(found[0]["times_delivered"]) - 1)
        await self._hold(entry_id, given_back_ms, before)

    async def _hold(self, entry_id: bytes, idle_ms: int = 0, deliveries: int | None = None) -> None:
        """Record an idle time and a delivery count; None leaves the count unchanged."""
        with explained(self._url):
            await self._client.xclaim(
                self._stream,
                self._group,
                self._consumer,
                min_idle_time=0,
                message_ids=[entry_id],
                idle=idle_ms,
                retrycount=deliveries,
                justid=True,
            )

    async def times(self, entry_id: bytes) -> int:
        """Number of times the entry was delivered; 0 if it is acknowledged."""
        found = await self._client.xpending_range(
            self._stream, self._group, min=entry_id, max=entry_id, count=1
        )
        return int(found[0]["times_delivered"]) if found else 0

    async def ack(self, entry_id: bytes) -> None:
        """Acknowledge the entry."""
        await self._client.xack(self._stream, self._group, entry_id)

    async def bury(self, entry_id: bytes, dead: str, letter: dict[str, str]) -> None:
        """Acknowledge the entry and add `letter` to the stream `dead`, atomically.

        Raises:
            RedisUnavailable, RedisFull: neither was done, as far as is known.
        """
        # A kill between the two commands would leave the letter and deliver the entry again.
        async with self._client.pipeline(transaction=True) as both:
            both.xadd(dead, letter)
            both.xack(self._stream, self._group, entry_id)
            with explained(self._url):
                await both.execute()
