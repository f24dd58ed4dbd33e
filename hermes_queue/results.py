"""The results stream: one entry per finished group, read through consumer groups.

A body is stored once (`body:{trajectory_id}`); the stream entry of a group lists its
members in plain fields, so that a consumer filters without unpacking. Each consumer group
sees every entry, each entry goes to one consumer of the group, and it is delivered again
until it is acknowledged. Acknowledge after your write or step is durable, and keep the
first record of a trajectory id: a power loss of Redis can repeat the last second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import redis
import redis.asyncio
from pydantic import PrivateAttr

from hermes_queue import codec
from hermes_queue.connection import connect_async, explained, redis_url
from hermes_queue.errors import (
    ConfigurationError,
    HermesQueueError,
    RedisUnavailable,
    SchemaTooNew,
)
from hermes_queue.models import SCHEMA_VERSION, ScoredTrajectory, TrajectoryGroup
from hermes_queue.settings import RedisSettings

STREAM = "results"
STALE_S = 300.0
"""Unacknowledged deliveries of a consumer that was silent for so long go to another one."""
_BATCH = 16
_OUTAGE = (redis.ConnectionError, redis.TimeoutError, OSError)

logger = logging.getLogger(__name__)


class DeliveredGroup(TrajectoryGroup):
    """A group that is ours until we acknowledge it."""

    _ack: Callable[[], Awaitable[None]] = PrivateAttr()

    async def ack(self) -> None:
        """Tell Redis that this group is dealt with. Repeating it does nothing.

        Raises:
            RedisUnavailable: it will be delivered again.
        """
        await self._ack()


async def consume(
    group: str,
    *,
    url: str | None = None,
    consumer: str | None = None,
    run_id: str | None = None,
    env: str | None = None,
    start: str = "0",
    idle_timeout_s: float | None = None,
    stale_s: float = STALE_S,
) -> AsyncIterator[DeliveredGroup]:
    """Yield finished groups as they come; call `await group.ack()` on each.

    Args:
        group: name of the consumer group, e.g. "trainer". Consumers of one group share
            the work; every group sees everything.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.
        consumer: name of this consumer. What it left unacknowledged in an earlier life
            under the same name comes first. Default: host and process id.
        run_id: only groups of this run; a consumer group keeps its filter for life.
        env: only groups of this env; likewise.
        start: "0" = from the oldest entry, "$" = only new ones; used when the group is made.
        idle_timeout_s: end when nothing came for so long; default: wait for ever.
        stale_s: claim deliveries of consumers silent for so long.

    Raises:
        ConfigurationError: the group exists with another filter.
        RedisUnavailable: Redis cannot be reached at the start or refuses us; later
            outages are waited out.
        SchemaTooNew: a newer hermes-queue published this group; nothing is acknowledged.
    """
    settings = RedisSettings()
    client = connect_async(settings, url)
    reader = _Reader(
        client,
        settings.prefix,
        group,
        consumer or f"{socket.gethostname()}-{os.getpid()}",
        {"run_id": run_id or "", "env": env or ""},
        redis_url(settings, url),
    )
    try:
        await reader.open(start)
        async for delivered in reader.deliveries(idle_timeout_s, stale_s):
            yield delivered
    finally:
        await client.aclose()


class _Reader:
    """One consumer of one group."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        prefix: str,
        group: str,
        consumer: str,
        wanted: Mapping[str, str],
        url: str,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = prefix + STREAM
        self._group = group
        self._consumer = consumer
        self._filter = {name: value for name, value in wanted.items() if value}
        self._url = url
        self._unanswered: set[bytes] = set()
        """Entries yielded and not acknowledged yet."""

    async def open(self, start: str) -> None:
        """Create the consumer group, or check that it is the same one."""
        key = _options_key(self._prefix, self._group)
        wanted = json.dumps(self._filter, sort_keys=True)
        client: Any = self._client
        with explained(self._url):
            try:
                await client.xgroup_create(self._stream, self._group, id=start, mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            await client.hsetnx(key, "filter", wanted)
            await client.hsetnx(key, "start", start)
            stored = (await client.hget(key, "filter")).decode()
        if stored != wanted:
            raise ConfigurationError(
                f"consumer group {self._group!r} exists with filter {stored}, not {wanted}: "
                "a group keeps its filter; choose another name"
            )

    async def deliveries(
        self, idle_timeout_s: float | None, stale_s: float
    ) -> AsyncIterator[DeliveredGroup]:
        cursor = "0"  # first what this consumer left unacknowledged, then new entries
        idle_since = time.monotonic()
        claimed = 0.0
        while True:
            try:
                if time.monotonic() - claimed > max(1.0, min(stale_s / 4, 30.0)):
                    claimed = time.monotonic()
                    await self._claim_stale(stale_s)
                    cursor = "0"
                entries = await self._read(cursor, _block_ms(idle_since, idle_timeout_s))
            except (RedisUnavailable, *_OUTAGE) as error:
                await _wait_out(error)
                cursor = "0"  # what Redis handed out in an answer that never came
                continue
            for entry_id, fields in entries:
                if entry_id in self._unanswered:
                    continue
                if delivered := await self._deliver_patiently(entry_id, fields):
                    self._unanswered.add(entry_id)
                    yield delivered
                    idle_since = time.monotonic()
            if cursor != ">":
                cursor = entries[-1][0].decode() if entries else ">"
            elif (
                not entries
                and idle_timeout_s is not None
                and time.monotonic() - idle_since >= idle_timeout_s
            ):
                return

    async def _read(self, cursor: str, block_ms: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        client: Any = self._client
        answer = await client.xreadgroup(
            self._group,
            self._consumer,
            {self._stream: cursor},
            count=_BATCH,
            block=block_ms if cursor == ">" else None,
        )
        return [entry for _, entries in answer for entry in entries] if answer else []

    async def _claim_stale(self, stale_s: float) -> None:
        """Make deliveries of silent consumers ours; they are read like our own."""
        client: Any = self._client
        await client.xautoclaim(
            self._stream,
            self._group,
            self._consumer,
            min_idle_time=int(stale_s * 1000),
            start_id="0-0",
            count=_BATCH,
            justid=True,
        )

    async def _deliver_patiently(
        self, entry_id: bytes, raw: dict[bytes, bytes] | None
    ) -> DeliveredGroup | None:
        while True:
            try:
                return await self._deliver(entry_id, raw)
            except (RedisUnavailable, *_OUTAGE) as error:
                await _wait_out(error)

    async def _deliver(
        self, entry_id: bytes, raw: dict[bytes, bytes] | None
    ) -> DeliveredGroup | None:
        client: Any = self._client

        async def ack() -> None:
            with explained(self._url):
                await client.xack(self._stream, self._group, entry_id)
            self._unanswered.discard(entry_id)

        fields = {name.decode(): value.decode() for name, value in (raw or {}).items()}
        if not fields or any(fields.get(n) != v for n, v in self._filter.items()):
            await ack()
            return None
        if int(fields["schema"]) > SCHEMA_VERSION:
            raise SchemaTooNew(
                f"group {fields['group_id']} has schema {fields['schema']}, this hermes-queue "
                f"reads up to {SCHEMA_VERSION}: upgrade hermes-queue here"
            )
        members = await self._bodies(json.loads(fields["members"]))
        if missing := [name for name, record in members.items() if record is None]:
            raise HermesQueueError(
                f"group {fields['group_id']}: the body of {', '.join(missing)} is gone from Redis"
            )
        extras = await self._bodies(json.loads(fields.get("extras") or "[]"))
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
        )
        delivered._ack = ack
        return delivered

    async def _bodies(self, ids: list[str]) -> dict[str, ScoredTrajectory | None]:
        """The records of `ids`, in order; None for one that Redis does not hold."""
        client: Any = self._client
        bodies = await client.mget([f"{self._prefix}body:{i}" for i in ids]) if ids else []
        return {
            name: None if body is None else codec.decode_record(body)
            for name, body in zip(ids, bodies, strict=True)
        }


def remove_consumer_group(client: redis.Redis, prefix: str, group: str) -> None:
    """Remove a consumer group that nobody reads any more, so that it holds back no trimming.

    Raises:
        redis.RedisError: it may still be there.
    """
    client.xgroup_destroy(prefix + STREAM, group)
    client.delete(_options_key(prefix, group))


def _options_key(prefix: str, group: str) -> str:
    """The hash with what a consumer group was made with."""
    return f"{prefix}consumer-group:{group}"


async def _wait_out(error: Exception) -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():  # the outage is our own end
        raise asyncio.CancelledError from error
    logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
    await asyncio.sleep(1.0)


def _block_ms(idle_since: float, idle_timeout_s: float | None) -> int:
    """How long one read may wait: in slices, so that stale deliveries are looked for."""
    if idle_timeout_s is None:
        return 5000
    left_s = idle_timeout_s - (time.monotonic() - idle_since)
    return max(1, min(5000, int(left_s * 1000)))
