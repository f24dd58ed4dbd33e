"""Watch a run until all of its groups have finished, and pass each one to the sink.

A group is acknowledged only after the sink has written it to disk. The consumer group belongs to
this process and is removed at the end, so that it never holds back the trimming of the stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError

from hermes_queue.agent.endpoint.choice import is_within, split_urls, without_credentials
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Breakers, Ledger, Pause, Runs, RunStatus
from hermes_queue.ledger.group_facts import dropped_groups
from hermes_queue.results.consume import STREAM, DeliveredGroup, consume, remove_consumer_group
from hermes_queue.results.consumers import EntryId, has_dealt_with, newest_entry
from hermes_queue.sinks.base import Sink
from producers.run.progress import Progress, ResultRow, result_row

logger = logging.getLogger(__name__)

POLL_S = 0.3
CANCELLED_END_S = 1.0
"""Seconds after its last group from which on a cancelled run counts as over."""
QUIET_END_S = 10.0
"""Seconds without a new group after which the rest of a run counts as lost, if no job waits or runs
and we have read all of the stream."""
OUTAGE_S = 120.0
"""Longest outage of Redis before we give up."""
PAUSED_END_S = 5.0
"""Seconds for the running jobs of a paused run to finish, if nobody can resume it."""
NO_WORKER_S = 10.0
LANE_POLL_S = 3.0


def refuse_without_results(ledger: Ledger) -> None:
    """Fail before anything is sent if this Redis user may not read results.

    Raises:
        ConfigurationError: the user lacks the rights.
        RedisUnavailable: Redis does not answer.
    """
    with explained(ledger.url):
        try:
            ledger.client.xlen(ledger.key(STREAM))
        except NoPermissionError as error:
            raise ConfigurationError(
                "--follow and --out read results, but the user in HERMES_QUEUE_REDIS_URL lacks the "
                "consumer's rights: omit these flags and read with a consumer (hermes-queue "
                "sink), or use a user with both roles (operator in "
                "deploy/redis/users.acl). Nothing was enqueued."
            ) from error


def no_worker(workers: Sequence[Mapping[str, Any]], lane: str) -> str:
    """What to do if none of the live workers (`Ledger.workers`) serves the lane; "" if one does."""
    if not workers:
        return "jobs wait, but no worker is alive; start one: celery -A hermes_queue worker"
    if any(lane in worker.get("lanes", ()) for worker in workers):
        return ""
    return (
        f"jobs wait on lane {lane}, which no live worker serves; start one: "
        f"HERMES_QUEUE_WORKER_LANES={lane} celery -A hermes_queue worker"
    )


def refuse_untrusted(workers: Sequence[Mapping[str, Any]], lane: str, base_url: str | None) -> None:
    """Fail before anything is sent if no worker of the lane calls the endpoint that jobs name.

    Raises:
        ConfigurationError: every one that serves the lane trusts others only.
    """
    lists = [worker.get("endpoints") for worker in workers if lane in worker.get("lanes", ())]
    urls = split_urls(base_url)
    if not urls or not lists:
        return
    for trusted in lists:
        if trusted is None or all(any(is_within(u, each) for each in trusted) for u in urls):
            return
    named = ", ".join(map(without_credentials, urls))
    raise ConfigurationError(
        f"--base-url {named}: no worker of lane {lane} trusts it; leave out --base-url to use "
        "HERMES_QUEUE_MODEL_BASE_URL of the workers, or start these with "
        f"HERMES_QUEUE_MODEL_TRUSTED_URLS={named}. Nothing was enqueued."
    )


@dataclass
class Follower:
    """Consumes the groups of one run. Its counters are valid at any time, also after Ctrl-C."""

    ledger: Ledger
    run_id: str
    groups: Iterable[str]
    """Ids of the groups to wait for."""
    lane: str
    sink: Sink | None
    """Destination of the members; None to only watch."""
    progress: Progress
    check: Callable[[], None]
    """Raises when the run cannot continue, e.g. because an embedded worker died."""
    ends_when_paused: bool = False
    """Stop watching a paused run, because nobody could resume it."""

    rows: list[ResultRow] = field(default_factory=list)
    failed: int = 0
    isolation: str | None = None
    """The message of a worker that could not isolate slots."""
    dropped: int = 0
    """Groups that were closed but not published, because of their policy."""
    cancelled: int = 0
    """Trajectories that will never finish because they were cancelled."""
    pause: Pause | None = None
    """The current pause of the run, if any."""

    def __post_init__(self) -> None:
        self.pending = set(self.groups)
        self._last_group = time.monotonic()
        self._last_entry: EntryId | None = None
        """Newest entry of the stream when no job waited or ran any more; None while one does."""
        self._lane_seen = -math.inf
        self._pause_shown = ""
        self._trouble_shown: dict[str, str] = {}
        self._group = f"producer.{self.run_id}.{secrets.token_hex(4)}"

    async def run(self, sending: asyncio.Future[None] | None = None) -> None:
        """Return when every group has been consumed, or when the rest can never arrive.

        Args:
            sending: the enqueueing that runs at the same time, if any.

        Raises:
            HermesQueueError: the sink, Redis or the embedded worker failed.
            IsolationUnavailable: the embedded worker cannot isolate slots.
        """
        if not self.pending:
            return
        tasks = [asyncio.create_task(self._collect()), asyncio.create_task(self._watch(sending))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._show()
        finally:
            await end_tasks(*tasks)
            self._remove_group()

    async def _collect(self) -> None:
        groups = consume(
            self._group, url=self.ledger.url, run=self.run_id, durable=False, allow_evaluation=True
        )
        async for group in groups:
            await self._take(group)
            if not self.pending:
                return

    async def _take(self, group: DeliveredGroup) -> None:
        if self.sink:
            await asyncio.to_thread(self.sink.write, group.members)
        try:
            await group.ack()
        except RedisUnavailable:  # the group is on disk; the sink drops a second delivery
            logger.warning(
                "group %s could not be acknowledged", group.group_id, extra={"action": "ack_failed"}
            )
        self._last_group = time.monotonic()
        if group.group_id not in self.pending:
            return
        self.pending.discard(group.group_id)
        for member in group.members:
            self.rows.append(result_row(member))
            self.failed += member.status == "failed"
            if member.failure and member.failure.kind == "isolation":
                self.isolation = member.failure.message

    async def _watch(self, sending: asyncio.Future[None] | None) -> None:
        started = reached = time.monotonic()
        hinted = False
        while True:
            self.check()
            try:
                status = await self._show()
                await self._report_pause()
                if (sending is None or sending.done()) and await self._is_over(status):
                    return
                if self.ends_when_paused and self.pause and self._silent_s > PAUSED_END_S:
                    newest = await asyncio.to_thread(newest_entry, self.ledger)
                    if await self._has_taken_all_to(newest):
                        return
                reached = time.monotonic()
            except RedisUnavailable:
                if time.monotonic() - reached > OUTAGE_S:
                    raise
                await asyncio.sleep(1.0)
                continue
            waited_s = time.monotonic() - started
            if not hinted and status.queued and not status.running and waited_s > NO_WORKER_S:
                hinted = True
                await self._hint()
            await asyncio.sleep(POLL_S)

    async def _is_over(self, status: RunStatus) -> bool:
        """Whether no pending group can arrive any more."""
        if status.done and status.dropped:
            await self._count_dropped()
            if not self.pending:
                return True
        self.cancelled = status.cancelled
        if status.queued + status.running:
            self._last_entry = None
            return False
        if self._last_entry is None:
            self._last_entry = await asyncio.to_thread(newest_entry, self.ledger)
        patience_s = CANCELLED_END_S if status.cancelled else QUIET_END_S
        return self._silent_s > patience_s and await self._has_taken_all_to(self._last_entry)

    async def _has_taken_all_to(self, entry: EntryId) -> bool:
        """Whether every entry of the stream up to `entry` has been read by us and acknowledged.

        The last jobs may have run for long, and the disk or the object store may be slow, so
        silence alone does not mean that the rest is lost.
        """
        return await asyncio.to_thread(has_dealt_with, self.ledger, self._group, entry)

    @property
    def _silent_s(self) -> float:
        """Seconds since the last group arrived or the pause began."""
        return time.monotonic() - self._last_group

    async def _count_dropped(self) -> None:
        dropped = await asyncio.to_thread(dropped_groups, self.ledger, sorted(self.pending))
        self.pending.difference_update(dropped)
        self.dropped += len(dropped)

    async def _show(self) -> RunStatus:
        status = await asyncio.to_thread(self.ledger.run_status, self.run_id)
        self.progress.show(status)
        return status

    async def _report_pause(self) -> None:
        """Report trouble with the model, and once that the run or its lane is paused or resumed."""
        if time.monotonic() - self._lane_seen < LANE_POLL_S:
            return
        self._lane_seen = time.monotonic()
        await self._report_trouble()
        message = await asyncio.to_thread(self._pause_message)
        if message != self._pause_shown:
            self._pause_shown = message
            self.progress.say(message or "the run resumed")

    async def _report_trouble(self) -> None:
        """Report what model calls fail of, whenever a worker has news of it."""
        for worker in await asyncio.to_thread(self.ledger.workers):
            owner, text = str(worker.get("owner")), worker.get("trouble", {}).get(self.run_id, "")
            tried = text.partition(", next in")[0]
            if text and self._trouble_shown.get(owner) != tried:
                self._trouble_shown[owner] = tried
                self.progress.say(f"model calls fail: {text}")

    def _pause_message(self) -> str:
        """The reason why no new job begins; empty if none holds them back."""
        pause = Runs(self.ledger).paused(self.run_id)
        if pause and not self.pause:
            self._last_group = time.monotonic()
        self.pause = pause
        if pause:
            because = f" ({pause.by}): {pause.reason}" if pause.reason else ""
            remedy = (
                ""
                if self.ends_when_paused
                else f"; resume it: hermes-queue run resume {self.run_id}"
            )
            return f"the run is paused{because}{remedy}"
        lane = Breakers(self.ledger).state(self.lane)
        if lane.message:
            return f"lane {self.lane} is paused and tries one job at a time: {lane.message}"
        for held in Breakers(self.ledger).open_endpoints(self.lane):
            return f"jobs that call {held.endpoint} wait, one at a time is tried: {held.message}"
        return ""

    async def _hint(self) -> None:
        """Report that no worker serves the waiting jobs; usually none was started."""
        if missing := no_worker(await asyncio.to_thread(self.ledger.workers), self.lane):
            self.progress.say(missing)

    def _remove_group(self) -> None:
        """Remove our consumer group. Without Redis there is nothing to remove."""
        try:
            remove_consumer_group(self.ledger.client, self.ledger.prefix, self._group)
        except Exception as error:  # noqa: BLE001 - cleaning up must not hide the outcome
            logger.debug("consumer group %s was not removed: %s", self._group, error)
