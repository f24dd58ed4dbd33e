"""The Celery task: lease, acknowledge, roll out, publish or give back."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from hermes_queue.bodies import codec
from hermes_queue.broker.app import app
from hermes_queue.broker.pool import RunningTask, current_task
from hermes_queue.errors import (
    Cancelled,
    ConfigurationError,
    DeadlineExceeded,
    EnvBug,
    SandboxUnavailable,
    SchemaTooNew,
    TrajectoryFailure,
    WorkLost,
    foreign_error,
)
from hermes_queue.ledger import Begun, Claim, Runs, Spent, transitions
from hermes_queue.ledger.group_facts import stand_in_job
from hermes_queue.models import AttemptRecord, Name
from hermes_queue.queues import RUN_TRAJECTORY
from hermes_queue.telemetry.scrubbing import scrub
from workers import runtime as runtimes
from workers.attempt import Attempt
from workers.draft import Draft
from workers.evidence import attempt_record, retry_delay_s
from workers.intake.rows import row_and_program
from workers.intake.taking import take
from workers.outbox import Outbox
from workers.resume.journal import TurnJournal
from workers.rollout import rollout
from workers.runtime import AttemptProgress, Runtime
from workers.stages.handover import HandOver
from workers.upkeep import metering
from workers.upkeep.quarantine import PoisonJob, isolated

logger = logging.getLogger(__name__)

_HELD_S = 2.0
"""Pause of the task of a held job; without it the backlog would cycle through the worker."""

_FORGOTTEN = (
    ". Redis has its message but not the job: Redis was restored from older data or evicts keys "
    "(run `hermes-queue doctor`), or the run was purged"
)


class Delivery(BaseModel):
    """The task's arguments; the job itself is in the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    trajectory_id: Name
    attempt: int = Field(ge=1)


@app.task(name=RUN_TRAJECTORY)
async def run_trajectory(trajectory_id: str, attempt: int) -> str:
    """Run the trajectory that is next in the lanes that this worker serves.

    The message names one that waited when it was sent. If none may begin now, the delivery is
    dropped. Returns the verdict for Flower.
    """
    delivery = Delivery(trajectory_id=trajectory_id, attempt=attempt)
    runtime, task = runtimes.get(), current_task()
    begun = await take(runtime, task, delivery.trajectory_id, delivery.attempt)
    trajectory_id = begun.trajectory_id
    claim = Claim(trajectory_id, begun.epoch)
    if begun.verdict != "run":
        await task.acknowledge()
        level, why = logging.DEBUG if begun.verdict == "none" else logging.INFO, ""
        if begun.verdict == "unknown":
            level, why = logging.WARNING, _FORGOTTEN
            metering.forgotten(runtime.meter, "delivery")
        name, extra = trajectory_id, {"action": "dropped", "trajectory_id": trajectory_id}
        logger.log(level, "delivery of %s dropped: %s%s", name, begun.verdict, why, extra=extra)
        if begun.verdict == "held":
            await asyncio.sleep(_HELD_S)
        return begun.verdict
    leased = _Attempt(runtime, task, claim, begun)
    with runtime.leased(claim, task, progress=leased.progress):
        return await leased.run()


class _Attempt:
    """One leased attempt, from the stored job to its published record."""

    def __init__(self, runtime: Runtime, task: RunningTask, claim: Claim, begun: Begun) -> None:
        self._runtime = runtime
        self._task = task
        self._claim = claim
        self._begun = begun
        self._since = time.monotonic()
        self._draft: Draft | None = None
        self._journal: TurnJournal | None = None
        self._handover: HandOver | None = None
        self._outbox = Outbox(runtime, claim)
        self._own = asyncio.current_task()

    def progress(self) -> AttemptProgress:
        """The current stage and turns, for the heartbeat and metrics."""
        draft = self._draft
        if draft is None:
            return AttemptProgress("load", self._since, attempt=self._begun.attempt)
        job = draft.job
        return AttemptProgress(
            draft.clock.shown,
            self._since,
            lane=draft.lane,
            label=f"{job.env}:{job.instance_id}#{job.sample_index}",
            turns=len(draft.agent.turns),
            attempt=draft.attempt,
            messages=draft.agent.messages,
            overdue_s=draft.clock.overdue_s,
            is_finished=self._outbox.exists,
        )

    async def run(self) -> str:
        """Acknowledge, measure, conclude; always returns an outcome of the job."""
        try:
            await self._task.acknowledge()
            try:
                job = codec.decode_job(self._begun.job, self._claim.trajectory_id)
            except SchemaTooNew as error:
                return await self._refuse(error)
            except ValueError as error:
                return await self._unreadable(error)
            self._draft = Draft.of(
                job,
                self._begun,
                prices=self._runtime.model.prices,
                on_stage=self._task.report_stage if self._runtime.stage_events.take() else None,
                places=self._runtime.places,
                on_leased=partial(self._runtime.ready.note, self._begun.needs),
            )
            try:
                lost = await self._take_over(self._draft)
            except SchemaTooNew as error:
                if not self._begun.cancel:
                    return await self._refuse(error)
                lost = None
            self._runtime.watch(self._draft)
            if self._begun.deaths > self._runtime.retry.max_deaths:  # even ending it failed
                return await self._unreadable(PoisonJob("no record of it can be made"))
            if self._begun.cancel:
                return await self._end(self._draft, Cancelled(self._begun.cancel))
            if letter := await isolated(self._runtime, self._claim, self._begun, job):
                return f"handed back: to run alone, see dead letter {letter}"
            return await self._conclude(self._draft, lost or await self._measure(self._draft))
        except asyncio.CancelledError:
            return await self._interrupted()
        except Exception as error:  # noqa: BLE001 - the job must not be lost
            return await self._escaped(error)
        finally:
            self._outbox.abandon()
            self._runtime.left(self._draft)

    async def _take_over(self, draft: Draft) -> TrajectoryFailure | None:
        """Get ready to hand the work of the agent over, or take what another worker has."""
        if not self._begun.handed and self._runtime.worker.stages == "all":
            return None
        self._handover = HandOver(self._runtime, self._claim, self._begun, draft)
        return await self._handover.take() if self._begun.handed else None

    async def _measure(self, draft: Draft) -> TrajectoryFailure | None:
        """Run the attempt; returns its failure, wherever it was raised."""
        try:
            if self._begun.deaths >= self._runtime.retry.max_deaths:
                raise PoisonJob(f"{self._begun.deaths} workers died while they ran it alone")
            row, definition = await row_and_program(self._runtime, draft.job)
            if self._runtime.resume.enabled and not draft.is_handed:
                self._journal = TurnJournal(self._runtime, self._claim, self._begun, draft)
            attempt = Attempt(
                draft=draft,
                row=row,
                services=self._runtime.services,
                on_measured=lambda: self._outbox.keep(draft),
                before_turn=lambda: self._runtime.pauses.over(draft.job.run_id),
                limiter=self._runtime.calls_of(draft.job.trajectory_id),
                definition=definition,
                journal=self._journal,
                handover=self._handover,
            )
            await rollout(attempt)
        except TrajectoryFailure as failure:
            if type(failure) is EnvBug and failure.__cause__:
                self._log_bug(failure.__cause__)
            return failure
        except BaseException as error:  # whoever raised it, the job must not be lost
            if self._is_ended_from_outside(error):
                raise
            self._log_bug(error)
            bug = EnvBug(foreign_error(error))
            bug.stage = draft.clock.current
            return bug
        return None

    def _log_bug(self, error: BaseException) -> None:
        name, extra = self._claim.trajectory_id, {"action": "bug"}
        logger.error("%s failed", name, exc_info=error, extra=extra)

    def _is_ended_from_outside(self, error: BaseException) -> bool:
        """Whether a cancellation or the coroutine's end came from outside the env's code.

        An env that calls sys.exit(), cancels itself or raises anything else ends its own
        trajectory, once, and neither the worker nor the lease.
        """
        if isinstance(error, asyncio.CancelledError):
            return self._task.cancel_reason is not None
        if isinstance(error, GeneratorExit):  # thrown into a coroutine that nobody runs any more
            try:
                return asyncio.current_task() is not self._own
            except RuntimeError:
                return True
        return False

    async def _conclude(self, draft: Draft, failure: TrajectoryFailure | None) -> str:
        """Publish a measured record; else retry, or publish the failure."""
        if self._handover and self._handover.is_done:
            await self._forget()
            return "handed over"
        kept = await self._outbox.kept()
        if isinstance(failure, SandboxUnavailable) and not kept:
            return await self._no_room(draft, failure)
        self._runtime.ended(draft, failure)
        await self._pause_run(draft, failure or draft.after_failure)
        if kept or failure is None:
            return await self._publish()
        left_s = draft.clock.total_left_s
        delay_s = retry_delay_s(failure, draft.earlier, self._runtime.retry, left_s=left_s)
        if delay_s is None:
            return await self._end(draft, failure)
        where = f"{draft.job.trajectory_id}: {failure.cause} in {failure.stage}"
        extra = {"action": "retry"}
        logger.warning("%s, retried in %.1f s: %s", where, delay_s, failure, extra=extra)
        await self._pay(draft)
        evidence = await self._runtime.in_thread(attempt_record, draft, failure, self._runtime)
        is_lost = isinstance(failure, WorkLost)
        await self._give_back(delay_s=delay_s, failed_attempt=evidence, is_work_lost=is_lost)
        await self._forget()
        return f"retry: {failure.cause}"

    async def _end(self, draft: Draft, failure: TrajectoryFailure) -> str:
        """Publish the attempt as failed, unless it already has a record."""
        self._runtime.trace_end(draft, failure)
        await self._pay(draft)
        await self._outbox.keep(draft, failure)
        return await self._publish()

    async def _pay(self, draft: Draft) -> None:
        await TurnJournal(self._runtime, self._claim, self._begun, draft).pay()

    async def _publish(self) -> str:
        outcome = await self._outbox.publish()
        await self._forget()
        return outcome

    async def _forget(self) -> None:
        """Delete copies of the slot's files that the trajectory needs no longer."""
        if self._journal:
            await self._journal.forget()
        if self._handover:
            await self._handover.forget()

    async def _no_room(self, draft: Draft, failure: SandboxUnavailable) -> str:
        """Hand the job back, which uses no attempt: the provider has no sandbox now."""
        name, delay_s, extra = draft.job.trajectory_id, failure.retry_after_s, {"action": "no_room"}
        logger.warning("handed back %s for %.0f s: %s", name, delay_s, failure, extra=extra)
        await self._give_back(delay_s=delay_s)
        return "handed back: no sandbox"

    async def _interrupted(self) -> str:
        """Handle the cancellation by the pool, according to its reason."""
        if await self._outbox.kept():  # a finished record is published whatever the reason
            return await self._publish()
        reason = self._task.cancel_reason
        if reason == "shutdown" or self._draft is None:
            await self._give_back()
            return "handed back"
        match reason:
            case "terminate":
                return await self._end(self._draft, Cancelled("revoked by an operator"))
            case "cancelled":
                return await self._end(self._draft, Cancelled("its group no longer needs it"))
            case "soft" | "hard":
                limit = DeadlineExceeded(f"Celery's {reason} time limit")
                return await self._end(self._draft, limit)
            case "stuck":
                late = DeadlineExceeded(f"{self._draft.clock.current} went on after its deadline")
                late.stage = self._draft.clock.current
                return await self._conclude(self._draft, late)
        return f"stopped: {reason}"

    async def _give_back(
        self,
        *,
        delay_s: float = 0.0,
        failed_attempt: AttemptRecord | None = None,
        is_work_lost: bool = False,
    ) -> None:
        make_call = partial(
            transitions.requeue,
            self._claim,
            owner=self._runtime.owner,
            used_s=self._draft.clock.used_s if self._draft else 0.0,
            delay_s=delay_s,
            failed_attempt=failed_attempt,
            spent=self._draft.spent if self._draft else Spent(),
            continued=bool(self._draft and self._draft.counts_journal),
            retry=self._runtime.retry,
            is_work_lost=is_work_lost,
        )
        # A thread, because it packs the transcript of a failed attempt: up to a megabyte.
        call = await self._runtime.in_thread(make_call) if failed_attempt else make_call()
        await self._runtime.given_back(call, self._draft, failed_attempt)

    async def _escaped(self, error: Exception) -> str:
        """After a bug of ours that follows an attempt, publish its record, else hand the job back.

        It is due one lease later. Otherwise the lease would expire as if the worker had died. When
        this has happened to as many attempts as are allowed, the lease is left to expire: that
        counts like a death, and so ends the job.

        Raises:
            Exception: `error`, or what kept the record from being published.
        """
        if await self._outbox.kept():
            self._log_bug(error)
            try:
                return await self._outbox.publish()
            except Exception as unpublished:  # noqa: BLE001 - the job must not be lost
                error = unpublished
        await self._hand_back_after(error)
        raise error

    async def _hand_back_after(self, error: Exception) -> None:
        draft = self._draft
        if draft and len(draft.earlier) + 1 >= self._runtime.retry.max_attempts:
            return
        bug = EnvBug(foreign_error(error))
        bug.stage = "publish"
        try:
            kept = attempt_record(draft, bug, self._runtime) if draft else None
        except Exception:  # the same bug may break this record, too
            logger.exception("cannot keep a failed attempt", extra={"action": "attempt_unreadable"})
            kept = None
        await self._give_back(delay_s=self._runtime.lease.duration_s, failed_attempt=kept)

    async def _pause_run(self, draft: Draft, failure: TrajectoryFailure | None) -> None:
        """Pause the run if its jobs would all fail of the same wrong key, model or parameter."""
        if failure is None or not failure.consequences.pauses_run:
            return
        run_id = draft.job.run_id
        logger.error("run %s is paused: %s", run_id, failure, extra={"action": "run_paused"})
        pause = partial(Runs(self._runtime.ledger).pause, by=failure.cause)
        try:
            await self._runtime.until_redis_answers(pause, run_id, scrub(str(failure)))
        except ConfigurationError as error:  # it is cancelled or purged
            logger.info("%s", error, extra={"action": "run_not_paused"})

    async def _refuse(self, error: SchemaTooNew) -> str:
        """Hand back a job, or work, of a newer schema; it waits for a newer worker, unchanged."""
        name, extra = self._claim.trajectory_id, {"action": "refused"}
        logger.error("job %s is left to a newer worker: %s", name, error, extra=extra)
        await self._give_back(delay_s=self._runtime.lease.duration_s)
        return "refused: newer schema"

    async def _unreadable(self, error: Exception) -> str:
        """Publish an unreadable job as failed, so that its group can close; it is a dead letter."""
        name = self._claim.trajectory_id
        logger.error("job %s cannot be read: %s", name, error, extra={"action": "dead"})
        job = await self._runtime.until_redis_answers(stand_in_job, self._runtime.ledger, name)
        return await self._end(Draft.of(job, self._begun), EnvBug(str(error)))
