"""The deliveries of one consumer group that nobody has acknowledged, as Redis keeps them."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from hermes_queue.keyspace.connection import explained

_PAGE = 16

Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""Stream entries: id and fields."""


class Deliveries:
    """What `consumer` of `group` was given by `stream`, and what it may take over.

    Where an outage is not said to be explained, redis-py's own errors pass through.
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
        """New entries."""
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
        """Ids of unacknowledged deliveries from `cursor` on, and where to go on ("" = the end).

        Args:
            cursor: "-" for the beginning, else what the last page said.
            idle_ms: only those that nobody has touched for so long.
            ours: only those of this consumer.
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

    async def ours(self, at_most: int) -> list[bytes]:
        """Ids of what this consumer was given and has not acknowledged."""
        pending = await self._client.xpending_range(
            self._stream, self._group, "-", "+", at_most, self._consumer
        )
        return [entry["message_id"] for entry in pending]

    async def take(self, entry_id: bytes, idle_ms: int) -> Entries:
        """Have this delivered to us once more, if nobody else has taken it meanwhile."""
        entries = await self._client.xclaim(
            self._stream, self._group, self._consumer, min_idle_time=idle_ms, message_ids=[entry_id]
        )
        return [entry for entry in entries if entry[0] is not None]

    async def hold(
        self, entry_id: bytes, idle_s: float = 0.0, deliveries: int | None = None
    ) -> None:
        """Hold a delivery as if it had been made `idle_s` ago; counts as no further one.

        Raises:
            RedisUnavailable, RedisFull: it stays as it was.
        """
        with explained(self._url):
            await self._client.xclaim(
                self._stream,
                self._group,
                self._consumer,
                min_idle_time=0,
                message_ids=[entry_id],
                idle=int(idle_s * 1000),
                retrycount=deliveries,
                justid=True,
            )

    async def times(self, entry_id: bytes) -> int:
        """How often it was delivered; 0 when it is acknowledged."""
        found = await self._client.xpending_range(
            self._stream, self._group, min=entry_id, max=entry_id, count=1
        )
        return int(found[0]["times_delivered"]) if found else 0

    async def ack(self, entry_id: bytes) -> None:
        """Tell Redis that it is dealt with."""
        await self._client.xack(self._stream, self._group, entry_id)

    async def bury(self, entry_id: bytes, dead: str, letter: dict[str, str]) -> None:
        """Acknowledge it and leave `letter` in the stream `dead`, both or neither.

        Raises:
            RedisUnavailable, RedisFull: neither was done, as far as is known.
        """
        async with self._client.pipeline(transaction=True) as both:  # else a kill leaves it twice
            both.xadd(dead, letter)
            both.xack(self._stream, self._group, entry_id)
            with explained(self._url):
                await both.execute()
