"""The Celery task: lease, acknowledge, roll out, publish or give back."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from pydantic import BaseModel, ConfigDict, Field

from hermes_queue import codec
from hermes_queue.celery import app
from hermes_queue.errors import (
    Cancelled,
    DeadlineExceeded,
    EnvBug,
    SandboxError,
    SchemaTooNew,
    TrajectoryFailure,
)
from hermes_queue.ledger import Begun, Claim, PublishVerdict
from hermes_queue.models import AttemptRecord, Name, ScoredTrajectory, TrajectoryJob
from hermes_queue.pool import Job, current_job
from hermes_queue.queues import RUN_TRAJECTORY
from workers import runtime as runtimes
from workers.draft import Draft
from workers.rollout import rollout
from workers.runtime import Runtime
from workers.spool import SpooledRecord

logger = logging.getLogger(__name__)

DEADLINE_ATTEMPTS = 2
"""An attempt that ran out of time is repeated once, if the total deadline allows."""


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
    begun = await runtime.persist(
        runtime.ledger.begin,
        delivery.trajectory_id,
        delivery.attempt,
        owner=runtime.owner,
        lease_s=runtime.lease.duration_s,
    )
    claim = Claim(delivery.trajectory_id, begun.epoch)
    if begun.verdict != "run":
        await task.acknowledge()
        logger.info(
            "delivery of %s dropped: %s",
            claim.trajectory_id,
            begun.verdict,
            extra={"action": "dropped", "trajectory_id": claim.trajectory_id},
        )
        return begun.verdict
    with runtime.leased(claim, task.task_id):
        await task.acknowledge()
        return await _Attempt(runtime, task, claim, begun).run()


class _Attempt:
    """One leased attempt, from the stored job to its published record."""

    def __init__(self, runtime: Runtime, task: Job, claim: Claim, begun: Begun) -> None:
        self._runtime = runtime
        self._task = task
        self._claim = claim
        self._begun = begun
        self._spooled: SpooledRecord | None = None
        self._body: bytes | None = None

    async def run(self) -> str:
        try:
            job = codec.decode_job(self._begun.job)
        except (SchemaTooNew, ValueError) as error:
            return await self._unreadable(error)
        draft = Draft(
            job=job,
            attempt=self._begun.attempt,
            epoch=self._begun.epoch,
            earlier=self._begun.attempts,
        )
        try:
            await self._measure(draft)
        except TrajectoryFailure as failure:
            return await self._failed(draft, failure)
        except SoftTimeLimitExceeded:
            late = DeadlineExceeded("the task's soft time limit")
            return await self._publish(self._record(draft, late))
        except asyncio.CancelledError:
            return await self._interrupted(draft)
        return await self._publish(self._record(draft))

    async def _measure(self, draft: Draft) -> None:
        if self._begun.deaths >= self._runtime.retry.max_deaths:
            raise PoisonJob(f"{self._begun.deaths} workers died while they ran this job")
        row = await self._row(draft)
        await rollout(
            draft,
            row,
            backend=self._runtime.backend,
            model=self._runtime.model,
            left_s=lambda: self._left_s(draft.job),
            on_measured=lambda: self._spool(self._record(draft)),
        )

    async def _row(self, draft: Draft) -> dict[str, Any]:
        job = draft.job
        if job.item is not None:
            return job.item
        draft.item_sha256 = str(job.item_sha256)
        row = await self._runtime.persist(self._runtime.ledger.get_item, draft.item_sha256)
        if row is None:
            raise EnvBug(f"item {job.item_sha256} is gone from Redis: enqueue the run again")
        return row

    def _left_s(self, job: TrajectoryJob) -> float:
        """Seconds of the total deadline that are left to all attempts together."""
        return job.limits.total_timeout_s - max(0.0, time.time() - self._begun.started)

    def _record(self, draft: Draft, failure: TrajectoryFailure | None = None) -> ScoredTrajectory:
        return draft.record(owner=self._runtime.owner, host=self._runtime.host, failure=failure)

    # --- outcomes -------------------------------------------------------------------------

    async def _failed(self, draft: Draft, failure: TrajectoryFailure) -> str:
        """Retry what may be retried, publish the rest without a score."""
        retry = self._runtime.retry
        tries = DEADLINE_ATTEMPTS if failure.cause == "deadline" else retry.max_attempts
        if not failure.retryable or draft.attempt >= tries or self._left_s(draft.job) <= 0:
            return await self._publish(self._record(draft, failure))
        delay_s = min(retry.backoff_s * 2 ** (draft.attempt - 1), retry.backoff_max_s)
        delay_s *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
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

    async def _interrupted(self, draft: Draft) -> str:
        """The pool cancelled us; what that means depends on why."""
        if self._body is not None:  # measured already: only Redis can delay the publication
            return await self._publish(self._record(draft))
        match self._task.cancel_reason:
            case "shutdown":
                await self._give_back()
                return "handed back"
            case "terminate":
                return await self._publish(self._record(draft, Cancelled("revoked by an operator")))
            case "lease_lost" | "cancelled" as reason:
                return f"stopped: {reason}"
        raise asyncio.CancelledError

    async def _give_back(
        self, *, delay_s: float = 0.0, failed_attempt: AttemptRecord | None = None
    ) -> None:
        await self._runtime.persist(
            self._runtime.ledger.requeue,
            self._claim,
            owner=self._runtime.owner,
            delay_s=delay_s,
            failed_attempt=failed_attempt,
        )

    async def _unreadable(self, error: Exception) -> str:
        """A job this version cannot read: kept as evidence, and published so its group closes."""
        logger.error(
            "job %s cannot be read: %s",
            self._claim.trajectory_id,
            error,
            extra={"action": "dead", "trajectory_id": self._claim.trajectory_id},
        )
        ledger = self._runtime.ledger
        job = await self._runtime.persist(ledger.stand_in_job, self._claim.trajectory_id)
        await self._runtime.persist(
            ledger.bury, self._claim.trajectory_id, reason=str(error), job=self._begun.job
        )
        draft = Draft(job=job, attempt=self._begun.attempt, epoch=self._begun.epoch)
        return await self._publish(self._record(draft, EnvBug(str(error))))

    async def _spool(self, record: ScoredTrajectory) -> None:
        """Put the record on disk, fsynced: from here on it cannot be lost."""
        body = await self._runtime.in_thread(codec.encode_record, record)
        cap = self._runtime.results.inline_max_bytes
        if len(body) > cap:
            raise EnvBug(
                f"the record has {len(body)} bytes encoded, the cap is {cap}: lower "
                "limits.observation_bytes or raise HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES"
            )
        self._spooled = await self._runtime.in_thread(
            self._runtime.spool.put, record.trajectory_id, body
        )
        self._body = body

    async def _publish(self, record: ScoredTrajectory) -> str:
        """Spool, unless that has happened, and publish as soon as Redis lets us."""
        if self._body is None:
            await self._spool(record)
        verdict = await self._runtime.persist(self._publish_now, record)
        logger.info(
            "%s %s: score %s, %s",
            record.trajectory_id,
            record.stop_reason,
            record.score,
            verdict,
            extra={"action": "published", "trajectory_id": record.trajectory_id},
        )
        return f"{record.stop_reason} {record.score} ({verdict})"

    def _publish_now(self, record: ScoredTrajectory) -> PublishVerdict:
        """Publish, then let go of lease and spool file. In a thread; may be repeated."""
        verdict = self._runtime.ledger.publish(
            record,
            self._body or b"",
            owner=self._runtime.owner,
            finished_ttl_s=self._runtime.results.finished_ttl_s,
        )
        self._runtime.settle(self._claim)
        if self._spooled:
            self._spooled.drop()
        return verdict
