"""A consumer of a consumer group: claims stale deliveries, reads ahead, acknowledges."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis
import redis.asyncio
from pydantic import PrivateAttr

from hermes_queue.bodies import codec
from hermes_queue.bodies.store import is_claim, resolve
from hermes_queue.cancellation import Cancellation
from hermes_queue.errors import (
    ConfigurationError,
    HermesQueueError,
    RedisFull,
    RedisUnavailable,
    StoreUnavailable,
)
from hermes_queue.keyspace.connection import explained
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.results.deliveries import Deliveries, Entries
from hermes_queue.results.evaluations import EvaluationGate
from hermes_queue.results.filters import GroupFilter
from hermes_queue.results.stored import group_fields

STREAM = "results"
_OUTAGE = (redis.ConnectionError, redis.TimeoutError, OSError)

logger = logging.getLogger(__name__)


class DeliveredGroup(TrajectoryGroup):
    """A delivered group. It is ours until it is acknowledged."""

    _ack: Callable[[], Awaitable[None]] = PrivateAttr()
    _nack: Callable[[bool], Awaitable[None]] = PrivateAttr()
    _touch: Callable[[], Awaitable[None]] = PrivateAttr()
    _reject: Callable[[str], Awaitable[None]] = PrivateAttr()

    async def ack(self) -> None:
        """Acknowledge the group. Repeating the call does nothing.

        Raises:
            RedisUnavailable: the group will be delivered again.
        """
        await self._ack()

    async def nack(self, *, counted: bool = True) -> None:
        """Give the group back; a consumer of the group receives it within half a minute.

        Args:
            counted: whether this delivery counts towards `max_deliveries`. Pass False if the
                failure has nothing to do with the group, such as a full disk.

        Raises:
            RedisUnavailable: the group will be delivered again after `stale_s`.
        """
        await self._nack(counted)

    async def touch(self) -> None:
        """Renew the delivery, so that the group does not go stale while we work on it.

        Raises:
            RedisUnavailable: another consumer may receive it after `stale_s`.
        """
        await self._touch()

    async def reject(self, reason: str) -> None:
        """Acknowledge the group and make it a dead letter (`undeliverable`, docs/dead-letters.md).

        Raises:
            RedisUnavailable: the group will be delivered again.
        """
        await self._reject(reason)


class StreamReader:
    """One consumer of one consumer group."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        prefix: str,
        group: str,
        consumer: str,
        group_filter: GroupFilter,
        url: str,
        max_deliveries: int,
        prefetch: int,
        gate: EvaluationGate,
        on_filtered: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = prefix + STREAM
        self._group = group
        self._pending = Deliveries(client, self._stream, group, consumer, url)
        self._filter = group_filter
        self._url = url
        self._max_deliveries = max_deliveries
        self._prefetch = prefetch
        self._gate = gate
        self._on_filtered = on_filtered
        self._cancellation = Cancellation()
        self._claimed = 0.0
        self._stale_cursor = "-"
        self._missed_cursor = "-"
        """Cursor for deliveries of ours that were made to an earlier process of this name, or of
        which the reply was lost; "" = there are none."""
        self._broken_off = False
        """Whether the last read may have delivered entries in a reply that we did not receive."""
        self._read_to = "-"
        """Cursor behind the last entry that a read delivered."""
        self._claiming: bytes | None = None
        """A delivery that may be ours by a claim whose reply we have not received."""
        self._unanswered: set[bytes] = set()
        """Entries yielded and not acknowledged yet."""
        self._waiting: list[bytes] = []
        """Entries delivered to us and not yielded yet, including the one being unpacked."""

    async def open(self, start: str, durable: bool) -> None:
        """Create the consumer group, or check that the existing one has the same filter."""
        key = options_key(self._prefix, self._group)
        filter_json = self._filter.stored()
        client: Any = self._client
        with explained(self._url):
            if await self._is_open(key, filter_json, durable):
                self._cancellation.raise_if_swallowed()
                return
            try:
                await client.xgroup_create(self._stream, self._group, id=start, mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            # HSETNX: of two consumers that create the group at the same time, the first one's
            # filter must win. The second one reads it below and is refused; with HSET it would
            # silently change which groups the first one receives.
            await client.hsetnx(key, "filter", filter_json)
            await client.hsetnx(key, "start", start)
            await client.hset(key, "durable", "1" if durable else "0")
            stored = (await client.hget(key, "filter")).decode()
        self._cancellation.raise_if_swallowed()
        if json.loads(stored) != json.loads(filter_json):  # 1 is 1.0
            raise ConfigurationError(
                f"consumer group {self._group!r} exists with filter {stored}, not {filter_json}: "
                "a group keeps its filter; choose another name, such as one with the run id in it, "
                f"or, if nobody reads it any more, hermes-queue groups remove {self._group}"
            )

    async def _is_open(self, key: str, filter_json: str, durable: bool) -> bool:
        """Whether the consumer group exists with this filter and durability.

        If so, `open` writes nothing: a Redis that is full refuses writes, and only consumers can
        make room.
        """
        client: Any = self._client
        stored = await client.hmget(key, "filter", "durable")
        if stored != [filter_json.encode(), b"1" if durable else b"0"]:
            return False
        if not await client.exists(self._stream):
            return False
        groups = await client.xinfo_groups(self._stream)
        return any(group["name"] == self._group.encode() for group in groups)

    async def deliveries(
        self, idle_timeout_s: float | None, stale_s: float
    ) -> AsyncGenerator[DeliveredGroup, None]:
        """Yield groups as they come, through outages; end after `idle_timeout_s` without one."""
        idle_since = time.monotonic()
        if not self._cancellation.is_ours:  # the generator runs in another task than __init__
            self._cancellation = Cancellation()
        while True:
            self._cancellation.raise_if_swallowed()
            try:
                entries, again = await self._next(stale_s, _block_ms(idle_since, idle_timeout_s))
            except (RedisUnavailable, *_OUTAGE) as error:
                await self._wait_out(error)
                self._missed_cursor = "-"  # the lost reply may have delivered entries to us
                continue
            self._waiting = [entry_id for entry_id, _ in entries]
            for entry_id, fields in entries:
                # In hand already if a renewal failed and we claimed it from ourselves.
                if entry_id not in self._unanswered and (
                    delivered := await self._deliver_patiently(entry_id, fields, again)
                ):
                    self._unanswered.add(entry_id)
                    self._waiting.remove(entry_id)
                    yield delivered
                    idle_since = time.monotonic()
            if entries or again or idle_timeout_s is None:
                continue
            if time.monotonic() - idle_since >= idle_timeout_s:
                return

    async def _next(self, stale_s: float, block_ms: int) -> tuple[Entries, bool]:
        """Some entries, and whether they may have been delivered before.

        First stale deliveries of silent consumers, then deliveries that an earlier process of
        this name left unacknowledged, then new entries.
        """
        claim_every_s = max(1.0, min(stale_s / 4, 30.0))
        if time.monotonic() - self._claimed > claim_every_s:
            if stale := await self._claim_stale(stale_s):
                return stale, True
            self._claimed = time.monotonic()
        if self._missed_cursor:
            return await self._claim_missed(), True
        block_ms = min(block_ms, int(1000 * claim_every_s))
        # If this read is cancelled, Redis may have delivered entries that we never see: `give_back`
        # has to look for them.
        self._broken_off = True
        entries = await self._pending.read(self._prefetch, block_ms)
        self._broken_off = False
        if entries:
            self._read_to = f"({entries[-1][0].decode()}"
        return entries, False

    async def _claim_stale(self, stale_s: float) -> Entries:
        """Take over one stale delivery of a silent consumer; renew our own stale ones."""
        idle_ms = int(stale_s * 1000)
        page, after = await self._pending.page(self._stale_cursor, idle_ms=idle_ms)
        # Ours go stale too while the application works on them. Without a renewal here, another
        # consumer would take them over, and we might deliver them to ourselves again.
        for entry_id in self._unanswered.intersection(page):
            await self._pending.hold(entry_id)
        taken, after = await self._take_first(page, after, idle_ms)
        self._stale_cursor = after or "-"
        return taken

    async def _claim_missed(self) -> Entries:
        """Claim one delivery of ours that never reached us; those in hand must not count twice."""
        page, after = await self._pending.page(self._missed_cursor, ours=True)
        taken, self._missed_cursor = await self._take_first(page, after, 0)
        return taken

    async def _take_first(self, page: list[bytes], after: str, idle_ms: int) -> tuple[Entries, str]:
        """The first delivery of the page that is not in hand, and the next cursor.

        Only one: if it kills the process again, its neighbours must not count as delivered once
        more.
        """
        for entry_id in page:
            if entry_id not in self._unanswered:
                self._claiming = entry_id
                taken = await self._pending.take(entry_id, idle_ms)
                self._claiming = None
                return taken, f"({entry_id.decode()}"
        return [], after

    async def _deliver_patiently(
        self, entry_id: bytes, raw: dict[bytes, bytes] | None, again: bool
    ) -> DeliveredGroup | None:
        while True:
            try:
                return await self._deliver(entry_id, raw, again)
            except (RedisUnavailable, StoreUnavailable, *_OUTAGE) as error:
                await self._wait_out(error)

    async def _deliver(
        self, entry_id: bytes, raw: dict[bytes, bytes] | None, again: bool
    ) -> DeliveredGroup | None:
        fields = {name.decode(): value.decode() for name, value in (raw or {}).items()}
        if not fields or not self._filter.takes(fields):
            await self._ack(entry_id)
            if fields and self._on_filtered:
                self._on_filtered(fields)
            return None
        codec.refuse_newer(f"group {fields['group_id']}", int(fields["schema"]))
        count = await self._pending.times(entry_id) if again else 1
        if count > self._max_deliveries:
            await self._bury(entry_id, fields, f"delivered {count} times, never acknowledged")
            return None
        try:
            members, lost = await self._bodies(json.loads(fields["members"]))
            extras, _ = await self._bodies(json.loads(fields.get("extras") or "[]"))
        except ValueError as error:
            await self._bury(entry_id, fields, f"its body cannot be read: {error}")
            return None
        if lost:
            await self._bury(entry_id, fields, "; ".join(lost))
            return None
        if self._gate.refuses(fields["group_id"], members, extras):
            await self._ack(entry_id)
            return None
        delivered = DeliveredGroup(**group_fields(fields), members=members, extras=extras)
        delivered._ack = partial(self._ack, entry_id)
        delivered._nack = partial(self._nack, entry_id)
        delivered._touch = partial(self._pending.hold, entry_id)
        delivered._reject = partial(self._bury, entry_id, fields)
        return delivered

    async def give_back(self) -> None:
        """Release deliveries that were never yielded. Best effort, called on shutdown."""
        try:
            for entry_id in [*self._waiting, *await self._never_seen()]:
                await self._pending.give_back(entry_id, counted=False)
        except HermesQueueError as error:
            logger.debug("cannot give back deliveries, they become stale: %s", error)
        self._waiting.clear()

    async def _never_seen(self) -> list[bytes]:
        """Deliveries in a reply that we did not receive."""
        unseen = [self._claiming] if self._claiming else []
        held = self._unanswered | set(self._waiting)
        if self._broken_off:
            with explained(self._url):
                unseen += await self._pending.ours(len(held) + self._prefetch, self._read_to)
        return [entry_id for entry_id in unseen if entry_id not in held]

    async def keep(self, every_s: float) -> None:
        """Renew our unacknowledged deliveries every `every_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            held = self._unanswered | set(self._waiting)
            try:
                # Not all of `held`: `hold` would take back what another consumer has taken over.
                for entry_id in await self._pending.ours(len(held) + 1000):
                    if entry_id in held:
                        await self._pending.hold(entry_id)
            except (HermesQueueError, redis.RedisError, OSError) as error:
                logger.debug("deliveries were not renewed: %s", error)

    async def _wait_out(self, error: Exception) -> None:
        self._cancellation.raise_if_swallowed()  # the "outage" may be our own cancellation
        if isinstance(error, StoreUnavailable):
            logger.warning("waiting for the store: %s", error, extra={"action": "store_wait"})
        else:
            logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
        await asyncio.sleep(1.0)

    async def _ack(self, entry_id: bytes) -> None:
        with self._answering(entry_id):
            await self._pending.ack(entry_id)

    async def _nack(self, entry_id: bytes, counted: bool) -> None:
        with self._answering(entry_id):
            await self._pending.give_back(entry_id, counted=counted)

    @contextmanager
    def _answering(self, entry_id: bytes) -> Iterator[None]:
        """Answer one delivery; if the reply is lost, the next read looks for it again."""
        cancellation = Cancellation()
        try:
            with explained(self._url):
                yield
        except RedisUnavailable:
            self._missed_cursor = "-"
            cancellation.raise_if_swallowed()
            raise
        finally:
            # Only after Redis has replied: a read-ahead that runs meanwhile would find the entry
            # pending, not see it in hand, and deliver it a second time.
            self._unanswered.discard(entry_id)
        cancellation.raise_if_swallowed()

    async def _bury(self, entry_id: bytes, fields: dict[str, str], reason: str) -> None:
        """File a group that cannot be consumed as a dead letter, and go on.

        A Redis that is full has no room for the letter, and only reading on makes room. The
        entry then stays unacknowledged and comes again once it is stale.
        """
        with explained(self._url):
            if not await self._pending.times(entry_id):
                return  # buried by an earlier call whose reply was lost
        name = fields["group_id"]
        extra = {"action": "undeliverable", "group_id": name}
        logger.error("group %s is undeliverable to %s: %s", name, self._group, reason, extra=extra)
        letter = {"cause": "undeliverable", "reason": reason, "consumer_group": self._group}
        try:
            await self._pending.bury(entry_id, f"{self._prefix}dead", {**fields, **letter})
        except RedisFull as error:
            extra = {"action": "letter_waits", "group_id": name}
            logger.warning("%s stays unacknowledged: %s", name, error, extra=extra)
        self._unanswered.discard(entry_id)

    async def _bodies(self, ids: list[str]) -> tuple[tuple[ScoredTrajectory, ...], list[str]]:
        client: Any = self._client
        bodies = await client.mget([f"{self._prefix}body:{i}" for i in ids]) if ids else []
        stored = dict(zip(ids, bodies, strict=True))
        fetching = any(body and is_claim(body) for body in bodies)
        found, lost = await asyncio.to_thread(resolve, stored) if fetching else resolve(stored)
        return tuple(map(codec.decode_record, found.values())), list(lost.values())


def options_key(prefix: str, group: str) -> str:
    """Key of the hash with the filter, start and durability of a consumer group."""
    return f"{prefix}consumer-group:{group}"


def _block_ms(idle_since: float, idle_timeout_s: float | None) -> int:
    """How long one read may block: at most 5 s, so that stale deliveries are noticed."""
    if idle_timeout_s is None:
        return 5000
    left_s = idle_timeout_s - (time.monotonic() - idle_since)
    return max(1, min(5000, int(left_s * 1000)))
