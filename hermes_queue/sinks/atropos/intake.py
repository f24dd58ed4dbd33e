"""Takes groups from the results stream to posts, and acknowledges, refuses or drops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from hermes_queue.errors import RedisUnavailable
from hermes_queue.results.consume import consume
from hermes_queue.results.reader import DeliveredGroup
from hermes_queue.sinks.atropos.journal import Entry, Journal
from hermes_queue.sinks.atropos.members import MissingMembers, Whole
from hermes_queue.sinks.atropos.options import AtroposCounts, AtroposOptions
from hermes_queue.sinks.atropos.wire import convert
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.trainers.rows import RowRefused
from hermes_queue.trainers.sources.left_out import count_left_out

_STALE_S = 300.0
_MAX_DELIVERIES = 1000
"""Every start of the sink delivers waiting groups again, which does not make them poisonous."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Delivery:
    """A group that is acknowledged in Redis once all its posts have arrived."""

    handles: tuple[DeliveredGroup, ...]
    open: set[str]
    created: tuple[float, ...]
    """Creation times of its trajectories."""


class PendingDeliveries:
    """The deliveries of this process that Redis still regards as pending."""

    def __init__(
        self, options: AtroposOptions, journal: Journal, counts: AtroposCounts, meter: SinkMeter
    ) -> None:
        self.group_size = options.group_size
        """Sequences per group; None before the first group."""
        self.read_ahead = 1
        """Number of posts to prepare ahead; one batch, once the trainer has registered its size."""
        self.progress_s = time.monotonic()
        """Time of the last progress, on the monotonic clock."""
        self._options = options
        self._journal = journal
        self._counts = counts
        self._meter = meter
        self._members = MissingMembers(
            options.missing_wait_s if options.on_missing == "wait" else -math.inf
        )
        self._early: list[Whole] = []
        """Replacements of lost members that came before any other group. They are groups of one and
        do not show the size of the others."""
        self._deliveries: dict[str, _Delivery] = {}
        self._finished: set[str] = set()
        """Posts of an earlier process that arrived and whose group Redis will deliver again."""
        self._shrunk = asyncio.Event()

    async def feed(self) -> None:
        """Read ahead, and convert groups until one batch of posts is ready."""
        options = self._options
        stream = consume(
            options.group,
            url=options.redis_url,
            consumer="atropos",  # the same after a restart: its pending groups come first
            run=options.run_id,
            env=options.env,
            start=options.start,
            stale_s=_STALE_S,
            max_deliveries=_MAX_DELIVERIES,
            allow_evaluation=True,  # refused below, where they are counted
        )
        async with contextlib.aclosing(stream):
            async for delivered in stream:
                self.progress_s = time.monotonic()
                if whole := self._members.place(delivered):
                    await self._accept(whole)
                elif options.on_missing == "drop":
                    await self._drop_overdue()
                while len(self._journal.ready) >= self.read_ahead:
                    self._shrunk.clear()
                    await self._shrunk.wait()

    async def _accept(self, whole: Whole) -> None:
        """Prepare a group as soon as the group size is known."""
        group = whole.group
        if held := self._deliveries.get(group.group_id):
            # After a power loss Redis may hold it twice.
            held.handles += tuple(map(_without_bodies, whole.deliveries))
            return
        if self.group_size is None:
            if all(member.requeued_from for member in group.members):
                self._early.append(whole)
                return
            self.group_size = group.size
        early, self._early = self._early, []
        for each in (*early, whole):
            await self._prepare(each)

    async def _prepare(self, whole: Whole) -> None:
        group = whole.group
        try:
            if group.size != self.group_size:
                raise RowRefused("group_size", f"a group of {group.size}, not {self.group_size}")
            if any(m.evaluation for m in group.members) and not self._options.allow_evaluation:
                raise RowRefused("evaluation", "of an evaluation; see --allow-evaluation")
            posts = await asyncio.to_thread(
                convert,
                group,
                sequences=self._options.sequences,
                messages=self._options.messages,
                branches=self._options.branches,
            )
            if self._options.sequences == "longest":
                count_left_out(group, self._counts, branches=self._options.branches)
        except RowRefused as refusal:
            await self._reject(whole.deliveries, refusal.reason, str(refusal))
            return
        keys = {post.key for post in posts}
        handles = tuple(map(_without_bodies, whole.deliveries))
        self._deliveries[group.group_id] = delivery = _Delivery(
            handles, keys - self._finished, tuple(member.created for member in group.members)
        )
        for post in posts:
            if entry := self._journal.find(post.key):
                entry.post = post
            elif post.key not in self._finished:
                self._journal.ready.append(Entry(post.key, post))
        self._finished -= keys
        if not delivery.open:
            await self._acknowledge(group.group_id)

    async def hold(self) -> None:
        """Renew all deliveries that we hold, and drop groups that have waited for too long."""
        while True:
            await asyncio.sleep(min(_STALE_S / 4, max(1.0, self._options.missing_wait_s / 4)))
            await self._drop_overdue()
            handles = [h for d in self._deliveries.values() for h in d.handles]
            early = [h for whole in self._early for h in whole.deliveries]
            for handle in (*handles, *early, *self._members.held()):
                with contextlib.suppress(RedisUnavailable):
                    await handle.touch()

    async def _drop_overdue(self) -> None:
        for deliveries in self._members.overdue(time.time()):
            self._counts.dropped["missing_members"] += 1
            name = deliveries[0].group_id
            extra = {"action": "atropos_dropped", "group_id": name}
            logger.info("dropped group %s: members of it were not measured", name, extra=extra)
            for each in deliveries:
                await _insist(each.ack)

    def read_on(self) -> None:
        """Let `feed` continue after posts were sent."""
        self._shrunk.set()

    def wants(self, entry: Entry) -> bool:
        """Whether the group of this post is still to be sent."""
        return entry.key.rpartition("#")[0] in self._deliveries

    async def arrived(self, entry: Entry) -> None:
        """Record that the trainer has this post."""
        group_id = entry.key.rpartition("#")[0]
        delivery = self._deliveries.get(group_id)
        if delivery is None:
            self._finished.add(entry.key)
            return
        delivery.open.discard(entry.key)
        if not delivery.open:
            await self._acknowledge(group_id)

    async def _acknowledge(self, group_id: str) -> None:
        delivery = self._deliveries.pop(group_id)
        for handle in delivery.handles:
            await _insist(handle.ack)
        self._counts.acknowledged += 1
        self._meter.count(1, len(delivery.created), delivery.created)
        self._meter.traced(delivery.handles, len(delivery.created))
        self.progress_s = time.monotonic()

    async def refuse(self, entry: Entry, reason: str, detail: str) -> None:
        """Refuse the whole group of this post."""
        group_id = entry.key.rpartition("#")[0]
        rest = [e for e in self._journal.ready if not e.key.startswith(f"{group_id}#")]
        self._journal.ready.clear()
        self._journal.ready.extend(rest)
        await self._reject(self._deliveries.pop(group_id).handles, reason, detail)

    async def _reject(
        self, deliveries: tuple[DeliveredGroup, ...], reason: str, detail: str
    ) -> None:
        self._counts.refused[reason] += 1
        for each in deliveries:
            await _insist(partial(each.reject, f"atropos: {reason}: {detail}"))
        self.progress_s = time.monotonic()


async def _insist(action: Callable[[], Awaitable[None]]) -> None:
    """Repeat an answer to Redis until it succeeds; nothing more may be sent before that."""
    while True:
        try:
            await action()
            return
        except RedisUnavailable as error:
            logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
            await asyncio.sleep(1.0)


def _without_bodies(delivered: DeliveredGroup) -> DeliveredGroup:
    """The delivery without its records, which were converted; it can still be acknowledged."""
    return delivered.model_copy(update={"members": (), "extras": ()})
