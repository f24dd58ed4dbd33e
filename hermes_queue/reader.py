"""One consumer of one consumer group: what it is given, and in which order."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import redis
import redis.asyncio
from pydantic import PrivateAttr

from hermes_queue import codec
from hermes_queue.connection import explained
from hermes_queue.errors import ConfigurationError, RedisUnavailable, SchemaTooNew
from hermes_queue.models import SCHEMA_VERSION, ScoredTrajectory, TrajectoryGroup

STREAM = "results"
_BATCH = 16
_GIVEN_BACK_S = 365 * 86400.0
"""Idle time of what was given back: stale by any measure."""
_OUTAGE = (redis.ConnectionError, redis.TimeoutError, OSError)
_Entries = list[tuple[bytes, dict[bytes, bytes]]]

logger = logging.getLogger(__name__)


class DeliveredGroup(TrajectoryGroup):
    """A group that is ours until we acknowledge it."""

    _ack: Callable[[], Awaitable[None]] = PrivateAttr()
    _nack: Callable[[], Awaitable[None]] = PrivateAttr()
    _touch: Callable[[], Awaitable[None]] = PrivateAttr()

    async def ack(self) -> None:
        """Tell Redis that this group is dealt with. Repeating it does nothing.

        Raises:
            RedisUnavailable: it will be delivered again.
        """
        await self._ack()

    async def nack(self) -> None:
        """Give it back: a consumer of the group gets it within half a minute.

        Raises:
            RedisUnavailable: it will be delivered again after `stale_s`.
        """
        await self._nack()

    async def touch(self) -> None:
        """Say that we still work on it, so that it is not taken for stale.

        Raises:
            RedisUnavailable: another consumer may get it after `stale_s`.
        """
        await self._touch()


class _Cancellation:
    """Notices that our task was cancelled although nothing was raised.

    redis-py sends through `asyncio.wait_for`, which before Python 3.12 can swallow a
    cancellation that comes as it ends (python/cpython#86296), and reports one in the middle
    of an answer as an outage.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._count = self._task.cancelling() if self._task else 0

    def raise_if_swallowed(self) -> None:
        task = asyncio.current_task()
        if task and task is self._task and task.cancelling() > self._count:
            raise asyncio.CancelledError


class StreamReader:
    """One consumer of one group."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        prefix: str,
        group: str,
        consumer: str,
        wanted: Mapping[str, str],
        url: str,
        max_deliveries: int,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = prefix + STREAM
        self._group = group
        self._consumer = consumer
        self._filter = {name: value for name, value in wanted.items() if value}
        self._url = url
        self._max_deliveries = max_deliveries
        self._cancellation = _Cancellation()
        self._cursor = "0"
        self._claimed = 0.0
        self._claim_cursor = b"0-0"
        self._unanswered: set[bytes] = set()
        """Entries yielded and not acknowledged yet."""

    async def open(self, start: str, durable: bool) -> None:
        """Create the consumer group, or check that it is the same one."""
        key = options_key(self._prefix, self._group)
        wanted = json.dumps(self._filter, sort_keys=True)
        client: Any = self._client
        with explained(self._url):
            if await self._is_open(key, wanted, durable):
                return
            try:
                await client.xgroup_create(self._stream, self._group, id=start, mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            await client.hsetnx(key, "filter", wanted)
            await client.hsetnx(key, "start", start)
            await client.hset(key, "durable", "1" if durable else "0")
            stored = (await client.hget(key, "filter")).decode()
        if stored != wanted:
            raise ConfigurationError(
                f"consumer group {self._group!r} exists with filter {stored}, not {wanted}: "
                "a group keeps its filter; choose another name"
            )

    async def _is_open(self, key: str, wanted: str, durable: bool) -> bool:
        """Whether the group is there as it shall be.

        Then nothing is written: a Redis that is full refuses that, and it is the consumers who
        have to make room.
        """
        client: Any = self._client
        stored = await client.hmget(key, "filter", "durable")
        if stored != [wanted.encode(), b"1" if durable else b"0"]:
            return False
        if not await client.exists(self._stream):
            return False
        groups = await client.xinfo_groups(self._stream)
        return any(group["name"] == self._group.encode() for group in groups)

    async def deliveries(
        self, idle_timeout_s: float | None, stale_s: float
    ) -> AsyncIterator[DeliveredGroup]:
        """Groups as they come, through outages; ends after `idle_timeout_s` without any."""
        idle_since = time.monotonic()
        while True:
            self._cancellation.raise_if_swallowed()
            try:
                entries, again = await self._next(stale_s, _block_ms(idle_since, idle_timeout_s))
            except (RedisUnavailable, *_OUTAGE) as error:
                await self._wait_out(error)
                self._cursor = "0"  # what Redis handed out in an answer that never came
                continue
            for entry_id, fields in entries:
                if entry_id in self._unanswered:
                    continue
                if delivered := await self._deliver_patiently(entry_id, fields, again):
                    self._unanswered.add(entry_id)
                    yield delivered
                    idle_since = time.monotonic()
            if entries or again or idle_timeout_s is None:
                continue
            if time.monotonic() - idle_since >= idle_timeout_s:
                return

    async def _next(self, stale_s: float, block_ms: int) -> tuple[_Entries, bool]:
        """Some entries, and whether they may have been delivered before.

        In this order: what silent consumers hold, what this consumer left unacknowledged in
        an earlier life, new ones.
        """
        claim_every_s = max(1.0, min(stale_s / 4, 30.0))
        if time.monotonic() - self._claimed > claim_every_s:
            self._claimed = time.monotonic()
            if stale := await self._claim_stale(stale_s):
                return stale, True
        cursor = self._cursor
        entries = await self._read(cursor, min(block_ms, int(1000 * claim_every_s)))
        if cursor != ">":
            self._cursor = entries[-1][0].decode() if entries else ">"
        return entries, cursor != ">"

    async def _read(self, cursor: str, block_ms: int) -> _Entries:
        client: Any = self._client
        answer = await client.xreadgroup(
            self._group,
            self._consumer,
            {self._stream: cursor},
            count=_BATCH,
            block=block_ms if cursor == ">" else None,
        )
        return [entry for _, entries in answer for entry in entries] if answer else []

    async def _claim_stale(self, stale_s: float) -> _Entries:
        """Make deliveries of silent consumers ours."""
        client: Any = self._client
        answer = await client.xautoclaim(
            self._stream,
            self._group,
            self._consumer,
            min_idle_time=int(stale_s * 1000),
            start_id=self._claim_cursor,
            count=_BATCH,
        )
        self._claim_cursor = answer[0]
        return [entry for entry in answer[1] if entry[0] is not None]

    async def _deliver_patiently(
        self, entry_id: bytes, raw: dict[bytes, bytes] | None, again: bool
    ) -> DeliveredGroup | None:
        while True:
            try:
                return await self._deliver(entry_id, raw, again)
            except (RedisUnavailable, *_OUTAGE) as error:
                await self._wait_out(error)

    async def _deliver(
        self, entry_id: bytes, raw: dict[bytes, bytes] | None, again: bool
    ) -> DeliveredGroup | None:
        fields = {name.decode(): value.decode() for name, value in (raw or {}).items()}
        if not fields or any(fields.get(n) != v for n, v in self._filter.items()):
            await self._ack(entry_id)
            return None
        if int(fields["schema"]) > SCHEMA_VERSION:
            raise SchemaTooNew(
                f"group {fields['group_id']} has schema {fields['schema']}, this hermes-queue "
                f"reads up to {SCHEMA_VERSION}: upgrade hermes-queue here"
            )
        count = await self._deliveries_of(entry_id) if again else 1
        if count > self._max_deliveries:
            await self._bury(entry_id, fields, f"delivered {count} times, never acknowledged")
            return None
        try:
            members = await self._bodies(json.loads(fields["members"]))
            extras = await self._bodies(json.loads(fields.get("extras") or "[]"))
        except ValueError as error:
            await self._bury(entry_id, fields, f"its body cannot be read: {error}")
            return None
        if missing := [name for name, record in members.items() if record is None]:
            await self._bury(entry_id, fields, f"the body of {', '.join(missing)} is gone")
            return None
        delivered = DeliveredGroup(
            run_id=fields["run_id"],
            group_id=fields["group_id"],
            env=fields["env"],
            instance_id=fields["instance_id"],
            size=int(fields["size"]),
            members=tuple(filter(None, members.values())),
            extras=tuple(filter(None, extras.values())),
            complete=fields["complete"] == "1",
            mean=float(fields["mean"]) if fields["mean"] else None,
            std=float(fields["std"]) if fields["std"] else None,
            created=float(fields["created"]),
            finished=float(fields["finished"]),
            policy_version=int(fields["policy_version"]) if fields.get("policy_version") else None,
            stale=tuple(json.loads(fields.get("stale") or "[]")),
        )
        delivered._ack = partial(self._ack, entry_id)
        delivered._nack = partial(self._nack, entry_id)
        delivered._touch = partial(self._claim, entry_id)
        return delivered

    async def _wait_out(self, error: Exception) -> None:
        self._cancellation.raise_if_swallowed()  # the outage may be our own end
        logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
        await asyncio.sleep(1.0)

    async def _ack(self, entry_id: bytes) -> None:
        client: Any = self._client
        with explained(self._url):
            await client.xack(self._stream, self._group, entry_id)
        self._unanswered.discard(entry_id)

    async def _nack(self, entry_id: bytes) -> None:
        await self._claim(entry_id, idle_s=_GIVEN_BACK_S)
        self._unanswered.discard(entry_id)

    async def _claim(self, entry_id: bytes, idle_s: float = 0.0) -> None:
        """Hold a delivery as if it had been made `idle_s` ago; counts as no further one."""
        client: Any = self._client
        with explained(self._url):
            await client.xclaim(
                self._stream,
                self._group,
                self._consumer,
                min_idle_time=0,
                message_ids=[entry_id],
                idle=int(idle_s * 1000),
                justid=True,
            )

    async def _deliveries_of(self, entry_id: bytes) -> int:
        client: Any = self._client
        found = await client.xpending_range(
            self._stream, self._group, min=entry_id, max=entry_id, count=1
        )
        return int(found[0]["times_delivered"]) if found else 1

    async def _bury(self, entry_id: bytes, fields: dict[str, str], reason: str) -> None:
        """Put a group that cannot be consumed aside, with the evidence, and go on."""
        client: Any = self._client
        logger.error(
            "group %s is undeliverable to %s: %s",
            fields["group_id"],
            self._group,
            reason,
            extra={"action": "undeliverable", "group_id": fields["group_id"]},
        )
        letter = {"cause": "undeliverable", "reason": reason, "consumer_group": self._group}
        async with client.pipeline(transaction=True) as both:  # else a kill leaves it twice
            both.xadd(f"{self._prefix}dead", {**fields, **letter})
            both.xack(self._stream, self._group, entry_id)
            await both.execute()
        self._unanswered.discard(entry_id)

    async def _bodies(self, ids: list[str]) -> dict[str, ScoredTrajectory | None]:
        """The records of `ids`, in order; None for one that Redis does not hold."""
        client: Any = self._client
        bodies = await client.mget([f"{self._prefix}body:{i}" for i in ids]) if ids else []
        return {
            name: None if body is None else codec.decode_record(body)
            for name, body in zip(ids, bodies, strict=True)
        }


def options_key(prefix: str, group: str) -> str:
    """The hash with what a consumer group was made with."""
    return f"{prefix}consumer-group:{group}"


def _block_ms(idle_since: float, idle_timeout_s: float | None) -> int:
    """How long one read may wait: in slices, so that stale deliveries are looked for."""
    if idle_timeout_s is None:
        return 5000
    left_s = idle_timeout_s - (time.monotonic() - idle_since)
    return max(1, min(5000, int(left_s * 1000)))
