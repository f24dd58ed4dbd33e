"""The Celery task: lease, acknowledge, roll out, publish or give back."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hermes_queue import codec
from hermes_queue.celery import app
from hermes_queue.errors import (
    Cancelled,
    ConfigurationError,
    DeadlineExceeded,
    EnvBug,
    SandboxError,
    SandboxUnavailable,
    SchemaTooNew,
    TrajectoryFailure,
)
from hermes_queue.ledger import Begun, Claim, PublishVerdict, Runs, Spent
from hermes_queue.ledger.group_facts import stand_in_job
from hermes_queue.ledger.items import get_item
from hermes_queue.models import AttemptRecord, Name, ScoredTrajectory
from hermes_queue.pool import Job, current_job
from hermes_queue.queues import RUN_TRAJECTORY
from hermes_queue.scrubbing import scrub
from workers import runtime as runtimes
from workers.draft import Draft, encoded, evidence
from workers.retry import retry_delay_s
from workers.rollout import rollout
from workers.runtime import Progress, Runtime
from workers.spool import SpooledRecord

logger = logging.getLogger(__name__)

_HELD_S = 2.0
"""A task of a paused lane keeps its place so long, or the backlog would run in a circle."""

_LAST_WORDS_S = 5.0
"""How long a task that is cancelled while it asks for its lease waits for the answer."""


class PoisonJob(SandboxError):
    """Too many workers died while they ran this job."""

    retryable = False


class Delivery(BaseModel):
    """The task's arguments; the job itself is in the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    trajectory_id: Name
    attempt: int = Field(ge=1)


@app.task(name=RUN_TRAJECTORY)
async def run_trajectory(trajectory_id: str, attempt: int) -> str:
    """Run one delivery of one trajectory; returns the verdict for Flower.

    A second delivery of a job that runs or has run is answered by the ledger and dropped.
    """
    delivery = Delivery(trajectory_id=trajectory_id, attempt=attempt)
    runtime, task = runtimes.get(), current_job()
    begun = await _begin(runtime, delivery)
    claim = Claim(delivery.trajectory_id, begun.epoch)
    if begun.verdict != "run":
        await task.acknowledge()
        logger.info(
            "delivery of %s dropped: %s",
            claim.trajectory_id,
            begun.verdict,
            extra={"action": "dropped", "trajectory_id": claim.trajectory_id},
        )
        if begun.verdict == "held":
            await asyncio.sleep(_HELD_S)
        return begun.verdict
    leased = _Attempt(runtime, task, claim, begun)
    with runtime.leased(claim, task, progress=leased.progress):
        return await leased.run()


async def _begin(runtime: Runtime, delivery: Delivery) -> Begun:
    """Ask for the lease. One that is granted while we are cancelled is given back."""
    asking = asyncio.ensure_future(
        runtime.persist(
            runtime.ledger.begin,
            delivery.trajectory_id,
            delivery.attempt,
            owner=runtime.owner,
            lease_s=runtime.lease.duration_s,
            nonce=secrets.token_hex(8),
        )
    )
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({asking}, timeout=_LAST_WORDS_S)
        asking.cancel()
        if done and not asking.exception() and asking.result().verdict == "run":
            claim = Claim(delivery.trajectory_id, asking.result().epoch)
            await runtime.persist(runtime.ledger.requeue, claim, owner=runtime.owner)
        raise


class _Attempt:
    """One leased attempt, from the stored job to its published record."""

    def __init__(self, runtime: Runtime, task: Job, claim: Claim, begun: Begun) -> None:
        self._runtime = runtime
        self._task = task
        self._claim = claim
        self._begun = begun
        self._since = time.monotonic()
        self._draft: Draft | None = None
        self._slot_since: float | None = None
        self._spooling: asyncio.Future[None] | None = None
        self._final: tuple[ScoredTrajectory, bytes] | None = None
        """The record and its encoding, once there is one. Nothing replaces it."""
        self._spooled: SpooledRecord | None = None

    def progress(self) -> Progress:
        """How far it is."""
        draft = self._draft
        if draft is None:
            return Progress("load", self._since, attempt=self._begun.attempt)
        job = draft.job
        label, turns = f"{job.env}:{job.instance_id}#{job.sample_index}", len(draft.agent.turns)
        return Progress(draft.current, self._since, job.lane, label, turns, draft.attempt)

    async def run(self) -> str:
        """Acknowledge, measure, conclude; whatever happens, say what became of the job."""
        try:
            await self._task.acknowledge()
            try:
                job = codec.decode_job(self._begun.job, self._claim.trajectory_id)
            except SchemaTooNew as error:
                return await self._refuse(error)
            except ValueError as error:
                return await self._unreadable(error)
            self._draft = Draft(
                job=job,
                attempt=self._begun.attempt,
                epoch=self._begun.epoch,
                earlier=tuple(evidence(self._begun.attempts)),
                prices=self._runtime.model.prices,
                policy_begun=self._begun.policy_version,
                on_stage=self._task.tell if self._runtime.stage_events.take() else None,
            )
            return await self._conclude(self._draft, await self._measure(self._draft))
        except asyncio.CancelledError:
            return await self._interrupted()

    async def _measure(self, draft: Draft) -> TrajectoryFailure | None:
        """Run the attempt; returns what went wrong, whoever raised it."""
        try:
            if self._begun.deaths >= self._runtime.retry.max_deaths:
                raise PoisonJob(f"{self._begun.deaths} workers died while they ran it alone")
            row = await self._row(draft)
            await rollout(
                draft,
                row,
                backend=self._runtime.backend,
                model=self._runtime.model,
                left_s=self._start_clock,
                on_measured=lambda: self._keep(draft),
                before_turn=lambda: self._runtime.pauses.over(draft.job.run_id),
                limiter=self._runtime.model_calls,
                prepare_limit_s=self._runtime.worker.prepare_timeout_s,
            )
        except asyncio.CancelledError:
            raise
        except TrajectoryFailure as failure:
            return failure
        except Exception as error:  # ours, the env's or a setting's: the job must not vanish
            logger.exception(
                "%s failed",
                self._claim.trajectory_id,
                extra={"action": "bug", "trajectory_id": self._claim.trajectory_id},
            )
            return EnvBug(f"{type(error).__name__}: {error}")
        return None

    async def _row(self, draft: Draft) -> dict[str, Any]:
        job = draft.job
        if job.item is not None:
            return job.item
        draft.item_sha256 = str(job.item_sha256)
        row = await self._runtime.persist(get_item, self._runtime.ledger, draft.item_sha256)
        if row is None:
            raise EnvBug(f"item {job.item_sha256} is gone from Redis: enqueue the run again")
        return row

    # --- the total deadline, over all attempts ------------------------------------------------

    def _start_clock(self) -> float:
        """The slot is ours: time counts from here on. Returns the seconds that are left."""
        self._slot_since = time.monotonic()
        return self._left_s()

    def _used_s(self) -> float:
        if self._slot_since is None:
            return 0.0
        waited_s = self._draft.waited_s if self._draft else 0.0
        return time.monotonic() - self._slot_since - waited_s

    def _left_s(self) -> float:
        total_s = self._draft.job.limits.total_timeout_s if self._draft else 0.0
        return total_s - self._begun.used_s - self._used_s()

    # --- outcomes -----------------------------------------------------------------------------

    async def _conclude(self, draft: Draft, failure: TrajectoryFailure | None) -> str:
        """Publish what was measured; retry what may be retried; publish the rest unmeasured."""
        if isinstance(failure, SandboxUnavailable) and not await self._is_final():
            return await self._no_room(draft, failure)
        self._runtime.ended(draft, failure)
        if await self._is_final() or failure is None:
            return await self._publish()
        delay_s = retry_delay_s(failure, draft.earlier, self._runtime.retry, left_s=self._left_s())
        if failure.cause == "model_config":
            await self._pause_run(draft, failure)
        if delay_s is None:
            return await self._publish(draft, failure)
        logger.warning(
            "%s: %s in %s, retried in %.1f s: %s",
            draft.job.trajectory_id,
            failure.cause,
            failure.stage,
            delay_s,
            failure,
            extra={"action": "retry", "trajectory_id": draft.job.trajectory_id},
        )
        await self._give_back(delay_s=delay_s, failed_attempt=draft.attempt_record(failure))
        return f"retry: {failure.cause}"

    async def _no_room(self, draft: Draft, failure: SandboxUnavailable) -> str:
        """The provider has no sandbox for it now: it waits in the queue and uses no attempt."""
        logger.warning(
            "%s is handed back for %.0f s: %s",
            draft.job.trajectory_id,
            failure.retry_after_s,
            failure,
            extra={"action": "no_room", "trajectory_id": draft.job.trajectory_id},
        )
        await self._give_back(delay_s=failure.retry_after_s)
        return "handed back: no sandbox"

    async def _interrupted(self) -> str:
        """The pool cancelled us; what that means depends on why."""
        if await self._is_final():  # only Redis and the store can delay it
            return await self._publish()
        reason = self._task.cancel_reason
        if reason == "shutdown" or self._draft is None:
            await self._give_back()
            return "handed back"
        match reason:
            case "terminate":
                return await self._publish(self._draft, Cancelled("revoked by an operator"))
            case "cancelled":
                return await self._publish(self._draft, Cancelled("its group needs it no more"))
            case "soft" | "hard":
                late = DeadlineExceeded(f"Celery's {reason} time limit")
                return await self._publish(self._draft, late)
        return f"stopped: {reason}"

    async def _give_back(
        self, *, delay_s: float = 0.0, failed_attempt: AttemptRecord | None = None
    ) -> None:
        await self._runtime.persist(
            self._runtime.ledger.requeue,
            self._claim,
            owner=self._runtime.owner,
            used_s=self._used_s(),
            delay_s=delay_s,
            failed_attempt=failed_attempt,
            spent=self._draft.spent if self._draft else Spent(),
        )

    async def _pause_run(self, draft: Draft, failure: TrajectoryFailure) -> None:
        """Begin no more jobs that would fail of the same wrong key, model or parameter."""
        run_id = draft.job.run_id
        logger.error(
            "run %s is paused: %s",
            run_id,
            failure,
            extra={"action": "run_paused", "run_id": run_id},
        )
        try:
            runs = Runs(self._runtime.ledger)
            await self._runtime.persist(runs.pause, run_id, scrub(str(failure)), by="model_config")
        except ConfigurationError as error:  # it is cancelled or purged
            logger.info("%s", error, extra={"action": "run_not_paused"})

    async def _refuse(self, error: SchemaTooNew) -> str:
        """A job for newer workers: it waits for one, using no attempt."""
        name, extra = self._claim.trajectory_id, {"action": "refused"}
        logger.error("job %s is left to a newer worker: %s", name, error, extra=extra)
        await self._give_back(delay_s=self._runtime.lease.duration_s)
        return "refused: newer schema"

    async def _unreadable(self, error: Exception) -> str:
        """A job nobody can read: published as failed, so that its group can close.

        The ledger keeps it as a dead letter.
        """
        logger.error(
            "job %s cannot be read: %s",
            self._claim.trajectory_id,
            error,
            extra={"action": "dead", "trajectory_id": self._claim.trajectory_id},
        )
        job = await self._runtime.persist(
            stand_in_job, self._runtime.ledger, self._claim.trajectory_id
        )
        draft = Draft(job=job, attempt=self._begun.attempt, epoch=self._begun.epoch)
        return await self._publish(draft, EnvBug(str(error)))

    # --- the record ---------------------------------------------------------------------------

    async def _keep(self, draft: Draft, failure: TrajectoryFailure | None = None) -> None:
        """Make the record, on disk and fsynced: from here on it cannot be lost.

        Goes on to its end when the caller is cancelled.
        """
        if self._spooling is None:
            self._spooling = asyncio.ensure_future(
                self._runtime.in_thread(self._keep_now, draft, failure)
            )
        await asyncio.shield(self._spooling)

    def _keep_now(self, draft: Draft, failure: TrajectoryFailure | None) -> None:
        runtime = self._runtime
        record = draft.record(owner=runtime.owner, host=runtime.host, failure=failure)
        record, body = encoded(record, runtime.bodies.max_bytes)
        try:
            self._spooled = runtime.spool.put(record.trajectory_id, body)
        except OSError as error:
            logger.error(
                "spool: %s; %s is published from memory",
                error,
                record.trajectory_id,
                extra={"action": "spool_failed", "trajectory_id": record.trajectory_id},
            )
        self._final = record, body

    async def _is_final(self) -> bool:
        """Whether the record exists, or is just being written."""
        if self._spooling is not None:
            await asyncio.wait({self._spooling})
            if self._final is None:  # it could not be made; the failure that says so can
                self._spooling = None
        return self._final is not None

    async def _publish(
        self, draft: Draft | None = None, failure: TrajectoryFailure | None = None
    ) -> str:
        """Publish the record as soon as we can; of `failure`, unless one exists."""
        if draft is not None:
            await self._keep(draft, failure)
        if self._final is None:
            raise RuntimeError("there is no record to publish")
        record, body = self._final
        verdict: PublishVerdict = "unstored"
        while verdict == "unstored":
            stored = await self._runtime.stored(record, body)
            verdict = await self._runtime.persist(self._publish_now, record, stored)
        logger.info(
            "%s %s: score %s, %s",
            record.trajectory_id,
            record.stop_reason,
            record.score,
            verdict,
            extra={"action": "published", "trajectory_id": record.trajectory_id},
        )
        return f"{record.stop_reason} {record.score} ({verdict})"

    def _publish_now(self, record: ScoredTrajectory, stored: bytes) -> PublishVerdict:
        """Publish, then let go of lease and spool file. In a thread; may be repeated."""
        if record.failure:
            self._runtime.tell_log(self._runtime.ledger)
        verdict = self._runtime.ledger.publish(
            record,
            stored,
            owner=self._runtime.owner,
            finished_ttl_s=self._runtime.results.finished_ttl_s,
        )
        if verdict != "unstored":
            self._runtime.settle(self._claim)
            self._runtime.published(record, verdict)
            if self._spooled:
                self._spooled.drop()
        return verdict
