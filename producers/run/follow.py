"""Watch a run until its groups are there, and hand each one to the sink.

A group is acknowledged only after the sink has it on disk. The consumer group is our
own and removed at the end, so that it never holds back the trimming of the stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable

from redis.exceptions import NoPermissionError

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Breakers, Ledger, Pause, Runs, RunStatus
from hermes_queue.ledger.group_facts import dropped_groups
from hermes_queue.results.consume import STREAM, DeliveredGroup, consume, remove_consumer_group
from hermes_queue.results.reading import EntryId, has_dealt_with, newest_entry
from hermes_queue.sinks.base import Sink
from producers.run.progress import Counts, Progress, ResultRow, result_row

logger = logging.getLogger(__name__)

POLL_S = 0.3
CANCELLED_END_S = 1.0
"""How long after its last group a cancelled run has nothing more to deliver."""
QUIET_END_S = 10.0
"""A run without waiting or running jobs, with nothing left for us in the stream, has lost the rest
if no group came for so long."""
OUTAGE_S = 120.0
"""How long Redis may be away before we give up."""
PAUSED_END_S = 5.0
"""How long what still runs of a paused run may take, where nobody could let it go on."""
NO_WORKER_S = 10.0
LANE_POLL_S = 3.0


def refuse_without_results(ledger: Ledger) -> None:
    """Say before anything is sent that this Redis user may not read results.

    Raises:
        ConfigurationError: it may not.
        RedisUnavailable: Redis does not answer.
    """
    with explained(ledger.url):
        try:
            ledger.client.xlen(ledger.key(STREAM))
        except NoPermissionError as error:
            raise ConfigurationError(
                "--follow and --out read results, which needs the consumer's rights, and the user "
                "in HERMES_QUEUE_REDIS_URL has none: leave them out and read with a consumer "
                "(hermes-queue sink), or use a user who may do both (operator in "
                "deploy/redis/users.acl). Nothing was enqueued."
            ) from error


class Follower:
    """Consumes the groups of one run. Its counters are valid at any time, also after Ctrl-C.

    Args:
        groups: ids of the groups to wait for.
        sink: where members go; None = only watch.
        check: raises when the run cannot go on, e.g. because an embedded worker died.
        ends_when_paused: whether nobody could let a paused run go on.
    """

    def __init__(
        self,
        ledger: Ledger,
        run_id: str,
        groups: Iterable[str],
        *,
        lane: str,
        sink: Sink | None,
        progress: Progress,
        check: Callable[[], None],
        ends_when_paused: bool = False,
    ) -> None:
        self.rows: list[ResultRow] = []
        self.failed = 0
        self.isolation: str | None = None
        """The message of a worker that could not isolate slots."""
        self.dropped = 0
        """Groups that were closed but, by their policy, not published."""
        self.cancelled = 0
        """Trajectories that the run lost because somebody cancelled it."""
        self.pause: Pause | None = None
        """The run's pause, as last seen."""
        self.pending = set(groups)
        self._ends_when_paused = ends_when_paused
        self._ledger = ledger
        self._run_id = run_id
        self._lane = lane
        self._sink = sink
        self._progress = progress
        self._check = check
        self._last_group = time.monotonic()
        self._last_entry: EntryId | None = None
        """The newest of the stream when nothing waited or ran any more; None while some does."""
        self._lane_seen = -math.inf
        self._said = ""
        self._group = f"producer.{run_id}.{secrets.token_hex(4)}"

    async def run(self, sending: asyncio.Future[None] | None = None) -> None:
        """Return when every group was consumed, or when the rest can never come.

        Args:
            sending: the enqueueing that goes on meanwhile.

        Raises:
            HermesQueueError: the sink, Redis or the embedded worker failed.
            IsolationUnavailable: the embedded worker cannot isolate slots.
        """
        if not self.pending:
            return
        tasks = [
            asyncio.create_task(self._collect()),
            asyncio.create_task(self._watch(sending)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._show()
        finally:
            await end_tasks(*tasks)
            self._forget()

    async def _collect(self) -> None:
        groups = consume(self._group, url=self._ledger.url, run=self._run_id, durable=False)
        async for group in groups:
            await self._take(group)
            if not self.pending:
                return

    async def _take(self, group: DeliveredGroup) -> None:
        if self._sink:
            await asyncio.to_thread(self._sink.write, group.members)
        try:
            await group.ack()
        except RedisUnavailable:  # it is on disk, and the sink drops a second delivery
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
            self._check()
            try:
                status = await self._show()
                await self._tell_of_pause()
                if (sending is None or sending.done()) and await self._is_over(status):
                    return
                if self._ends_when_paused and self.pause and self._silent_s > PAUSED_END_S:
                    newest = await asyncio.to_thread(newest_entry, self._ledger)
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
        """Whether nothing that is pending can come any more."""
        if status.done and status.dropped:
            await self._pass_over_dropped()
            if not self.pending:
                return True
        self.cancelled = status.cancelled
        if status.queued + status.running:
            self._last_entry = None
            return False
        if self._last_entry is None:
            self._last_entry = await asyncio.to_thread(newest_entry, self._ledger)
        patience_s = CANCELLED_END_S if status.cancelled else QUIET_END_S
        return self._silent_s > patience_s and await self._has_taken_all_to(self._last_entry)

    async def _has_taken_all_to(self, entry: EntryId) -> bool:
        """Whether nothing of the stream up to `entry` is still on its way to us, or in hand.

        The last jobs may have run for long, and the disk or the object store may be slow: silence
        alone does not say that the rest is lost.
        """
        return await asyncio.to_thread(has_dealt_with, self._ledger, self._group, entry)

    @property
    def _silent_s(self) -> float:
        """Since the last group came, or the pause."""
        return time.monotonic() - self._last_group

    async def _pass_over_dropped(self) -> None:
        gone = await asyncio.to_thread(dropped_groups, self._ledger, sorted(self.pending))
        self.pending.difference_update(gone)
        self.dropped += len(gone)

    async def _show(self) -> RunStatus:
        status = await asyncio.to_thread(self._ledger.run_status, self._run_id)
        self._progress.show(Counts(status.total, status.running, status.finished, status.failed))
        return status

    async def _tell_of_pause(self) -> None:
        """Say once, and again when it changes, that the run was paused or the lane is."""
        if time.monotonic() - self._lane_seen < LANE_POLL_S:
            return
        self._lane_seen = time.monotonic()
        said = await asyncio.to_thread(self._look_for_pause)
        if said != self._said:
            self._said = said
            self._progress.say(said or "the run goes on")

    def _look_for_pause(self) -> str:
        """Why nothing new begins; empty when nothing keeps it."""
        pause = Runs(self._ledger).paused(self._run_id)
        if pause and not self.pause:
            self._last_group = time.monotonic()
        self.pause = pause
        if pause:
            because = f" ({pause.by}): {pause.reason}" if pause.reason else ""
            return f"the run is paused{because}{self._way_on()}"
        lane = Breakers(self._ledger).state(self._lane)
        if lane.message:
            return f"lane {self._lane} pauses and tries one job at a time: {lane.message}"
        return ""

    def _way_on(self) -> str:
        if self._ends_when_paused:
            return ""
        return f"; let it go on: hermes-queue run resume {self._run_id}"

    async def _hint(self) -> None:
        """Jobs wait and nobody works: the usual reason is that no worker was started."""
        workers = await asyncio.to_thread(self._ledger.workers)
        if not workers:
            self._progress.say(
                "jobs wait, but no worker is alive; start one: celery -A hermes_queue worker"
            )
        elif not any(self._lane in worker.get("lanes", ()) for worker in workers):
            self._progress.say(
                f"jobs wait on lane {self._lane}, which no live worker serves; start one: "
                f"HERMES_QUEUE_WORKER_LANES={self._lane} celery -A hermes_queue worker"
            )

    def _forget(self) -> None:
        """Remove our consumer group; if Redis is gone, there is nothing to remove."""
        try:
            remove_consumer_group(self._ledger.client, self._ledger.prefix, self._group)
        except Exception as error:  # noqa: BLE001 - cleaning up must not hide the outcome
            logger.debug("consumer group %s stays: %s", self._group, error)
