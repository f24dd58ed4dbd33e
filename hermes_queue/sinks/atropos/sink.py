"""Sends finished groups to an Atropos trainer: `hermes-queue sink atropos`.

A group is acknowledged when the trainer has it, not when the server does: the server keeps
everything in memory. docs/atropos.md describes the consequences of each failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.sinks.atropos.client import (
    AtroposRefusal,
    AtroposServer,
    AtroposUnavailable,
    EnvStatus,
)
from hermes_queue.sinks.atropos.intake import PendingDeliveries
from hermes_queue.sinks.atropos.journal import Entry, Journal
from hermes_queue.sinks.atropos.options import AtroposCounts, AtroposOptions
from hermes_queue.sinks.atropos.single_flight import single_sink
from hermes_queue.sinks.atropos.wire import TrainerLimits, check_fits
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.telemetry.meter import Meter
from hermes_queue.trainers.rows import RowRefused

_WAIT_LOG_S = 30.0
"""Interval at which the log repeats the reason for waiting."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Registration:
    env_id: int
    limits: TrainerLimits
    group_size: int
    connection: int
    """Connection on which the server was last seen to know us."""

    @property
    def groups_per_batch(self) -> int:
        return self.limits.groups_per_batch(self.group_size)


class AtroposSink:
    """One environment of one Atropos server, fed from the results stream."""

    def __init__(self, options: AtroposOptions, meter: SinkMeter | None = None) -> None:
        self.options = options
        self.counts = AtroposCounts()
        self._stopping = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None
        self._server = AtroposServer(options.url)
        self._journal = Journal()
        self._intake = PendingDeliveries(
            options, self._journal, self.counts, meter or SinkMeter("atropos", Meter())
        )
        self._known: _Registration | None = None
        self._waiting_since_s = time.monotonic()
        self._wait_logged_s = -_WAIT_LOG_S

    async def run(self) -> AtroposCounts:
        """Serve until `stop()`, or until `idle_timeout_s`.

        Raises:
            ConfigurationError: the trainer's batch size and our group size do not fit, or the
                consumer group exists with another filter. Nothing was acknowledged in that case.
            HermesQueueError: no trainer registered within `register_timeout_s`.
            LeaseLost: another process now serves this consumer group.
            RedisUnavailable: at the start; later outages are waited out.
            SchemaTooNew: a newer hermes-queue published a group.
        """
        self._starting = asyncio.current_task()
        async with single_sink(self.options.group, self.options.redis_url) as keeper:
            self._starting = None
            await self._serve(keeper)
        return self.counts

    def stop(self) -> None:
        """End `run` after the current round, or by cancellation while it is starting."""
        self._stopping.set()
        if self._starting is not None:
            self._starting.cancel()

    async def _serve(self, keeper: asyncio.Task[None]) -> None:
        tasks = [asyncio.create_task(self._intake.feed()), asyncio.create_task(self._intake.hold())]
        try:
            while not self._stopping.is_set() and not self._idle():
                for task in (keeper, *tasks):
                    if task.done():
                        task.result()
                await self._turn()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.options.poll_s):
                        await self._stopping.wait()
            await self._leave()
        finally:
            await end_tasks(*tasks)
            self._server.close()

    async def _turn(self) -> None:
        """One round: check the server, observe which posts were taken, send further ones."""
        try:
            known = await self._connected()
            self._intake.read_on()
            if known:
                await self._fill(known, await self._observe(known))
                self._waiting_since_s = time.monotonic()
        except AtroposUnavailable as error:
            self._server.close()  # the next round checks whether it is the same server
            self._waiting("waiting for the Atropos server: %s", error)

    async def _connected(self) -> _Registration | None:
        """Our registration, checked again on each connection; None if there is none yet.

        Nothing may be sent to a server whose trainer has not registered: it would skip its
        initialisation and answer "not registered" for ever.
        """
        if self._known and self._server.connection == self._known.connection:
            return self._known
        limits = await asyncio.to_thread(self._server.limits)
        if limits is None:
            self._forget("its trainer is not registered")
            self._waiting("no trainer has registered at %s yet", self.options.url)
            return None
        self._waiting_since_s = time.monotonic()
        group_size = self._intake.group_size
        if group_size is None:
            return None  # nothing to send yet
        _check_size(limits, group_size)
        env_id = await self._recognised()
        if env_id is None:
            self._forget("it does not know us")
            env_id = await self._register(limits, group_size)
        if env_id is None:
            return None
        self._known = _Registration(env_id, limits, group_size, self._server.connection)
        self._intake.read_ahead = self._known.groups_per_batch
        return self._known

    async def _recognised(self) -> int | None:
        """Our id on the server, if it holds posts of this process or an earlier one."""
        before = self._known.env_id if self._known else None
        overrides = await asyncio.to_thread(self._server.latest_group_overrides)
        note = (overrides or {}).get("hermes_queue")
        if not isinstance(note, dict) or note.get("sink") != self.options.group:
            note = None  # another environment has sent since
        env_id = int(note["env_id"]) if note else before
        if overrides is None or env_id is None:
            return None
        try:
            status = await asyncio.to_thread(self._server.status, env_id)
        except AtroposUnavailable:
            return None
        now_s = time.monotonic()
        if note is None:
            return env_id if self._journal.observe(status, now_s) else None
        if not self._journal.adopt(note, status, now_s):
            return None
        if before is None:
            self.counts.adopted += len(note["posts"])
        return env_id

    async def _register(self, limits: TrainerLimits, group_size: int) -> int | None:
        env_id = await asyncio.to_thread(
            self._server.register_env, self.options.name, group_size, limits.max_token_len
        )
        if env_id is None:
            self._waiting("the trainer at %s has not asked for a batch yet", self.options.url)
            return None
        self.counts.registrations += 1
        extra = {"action": "atropos_registered", "env_id": env_id}
        text = "registered at %s as environment %d: batches of %d sequences in groups of %d"
        logger.info(text, self.options.url, env_id, limits.batch_size, group_size, extra=extra)
        status = await asyncio.to_thread(self._server.status, env_id)
        self._journal.step = status.step
        return env_id

    def _forget(self, why: str) -> None:
        self._known = None
        again = self._journal.lost()
        self.counts.sent_again += again
        if again:
            extra = {"action": "atropos_lost", "groups": again}
            text = "%s lost %d groups (%s): sending them again"
            logger.warning(text, self.options.url, again, why, extra=extra)

    async def _observe(self, known: _Registration) -> EnvStatus:
        """Observe which posts were taken, and acknowledge those that have arrived."""
        status = await asyncio.to_thread(self._server.status, known.env_id)
        now_s = time.monotonic()
        if self._server.connection != known.connection:
            raise AtroposUnavailable(f"{self.options.url} closed the connection")
        before = len(self._journal.queued)
        if not self._journal.observe(status, now_s):
            self._forget("it was reset")
            raise AtroposUnavailable(f"{self.options.url} was reset")
        if len(self._journal.queued) != before:
            self._intake.progress_s = now_s
        for entry in self._journal.settle(now_s, self.options.settle_s):
            await self._intake.arrived(entry)
        return status

    async def _fill(self, known: _Registration, status: EnvStatus) -> None:
        """Send as many posts as fit: at most one batch is sent and not acknowledged."""
        waiting = status.queue_size
        most = self.options.max_batches_queued * known.groups_per_batch
        while self._journal.ready and self._journal.room(known.groups_per_batch) > 0:
            if waiting >= most:
                return
            if await self._send(known, self._journal.ready.popleft()):
                waiting += 1
            self._intake.read_on()

    async def _send(self, known: _Registration, entry: Entry) -> bool:
        if entry.post is None or not self._intake.wants(entry):
            return False
        try:
            check_fits(entry.post, known.limits)
            note = self._journal.note(self.options.group, known.env_id, entry)
            overrides = {"group_size": known.group_size, "hermes_queue": note}
            body = await asyncio.to_thread(entry.post.body, known.env_id, overrides)
            await asyncio.to_thread(self._server.post, body)
        except RowRefused as refusal:
            await self._intake.refuse(entry, refusal.reason, str(refusal))
            return False
        except AtroposRefusal as refusal:
            await self._intake.refuse(entry, "server", str(refusal))
            return False
        except BaseException:
            self._journal.ready.appendleft(entry)  # the server is asked later whether it arrived
            raise
        self._journal.sent(entry)
        self._intake.progress_s = time.monotonic()
        self.counts.posts += 1
        return True

    async def _leave(self) -> None:
        """Acknowledge posts that have arrived, and disconnect if none are left on the server."""
        known = self._known
        try:
            if known:
                await self._observe(known)
            while known and self._journal.taken:
                await asyncio.sleep(self.options.poll_s)
                await self._observe(known)
            if known and not self._journal.queued:
                await asyncio.to_thread(self._server.disconnect, known.env_id)
        except AtroposUnavailable as error:
            extra = {"action": "atropos_left"}
            logger.warning("disconnected from %s: %s", self.options.url, error, extra=extra)
        if left := len(self._journal.queued):
            text = "%d groups wait on %s for its trainer; the next start accounts for them"
            logger.info(
                text, left, self.options.url, extra={"action": "atropos_left", "groups": left}
            )

    def _waiting(self, text: str, *what: Any) -> None:
        """Log the reason for waiting, at intervals; raise after `register_timeout_s`."""
        now_s = time.monotonic()
        if now_s - self._wait_logged_s >= _WAIT_LOG_S:
            self._wait_logged_s = now_s
            logger.info(text, *what, extra={"action": "atropos_wait"})
        timeout_s = self.options.register_timeout_s
        if timeout_s is not None and now_s - self._waiting_since_s >= timeout_s:
            raise HermesQueueError(f"gave up after {timeout_s:g} s: {text % what}")

    def _idle(self) -> bool:
        timeout_s = self.options.idle_timeout_s
        return timeout_s is not None and time.monotonic() - self._intake.progress_s >= timeout_s


def _check_size(limits: TrainerLimits, group_size: int) -> None:
    if not limits.groups_per_batch(group_size):
        raise ConfigurationError(
            f"groups of {group_size} never make a batch of {limits.batch_size} sequences: "
            "Atropos needs a group size that is a power of two and divides the trainer's "
            "batch size; change the trainer's, or give the size of most groups with --group-size"
        )
