"""The final record of one attempt: made once, stored on disk first, then published."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import Claim, PublishVerdict, Spent, transitions
from hermes_queue.models import ScoredTrajectory
from workers.draft import Draft
from workers.record import final_record
from workers.runtime import Runtime
from workers.spool import SpooledRecord
from workers.upkeep.recovery import put_away

logger = logging.getLogger(__name__)


class Outbox:
    """Owns the record of one attempt. Once it exists, nothing but a judge's answer replaces it."""

    def __init__(self, runtime: Runtime, claim: Claim) -> None:
        self._runtime = runtime
        self._claim = claim
        self._spooling: asyncio.Future[SpooledRecord | None] | None = None
        """Its result is the record on disk; None if the disk does not take it."""
        self._final: tuple[ScoredTrajectory, bytes] | None = None
        """The record and its encoding, once it exists."""
        self._draft: Draft | None = None
        self._spent: Spent | None = None
        self._is_provisional = False
        """Whether the record has no answer of its judge yet."""
        self._replaced: SpooledRecord | None = None
        """What was on disk before that answer."""

    async def keep(self, draft: Draft, failure: TrajectoryFailure | None = None) -> None:
        """Make the record and store it durably on disk: from here on it cannot be lost.

        Does nothing if it exists already, unless it lacked the answer of a judge, which `draft` has
        now. Finishes even if the caller is cancelled.
        """
        if self._is_provisional and failure is None and await self.kept():
            await self._replace(draft)
        if self._spooling is None:
            self._is_provisional = draft.is_provisional and failure is None
            self._spooling = self._runtime.spooled(partial(self._make, draft, failure))
        # Shielded: a caller that is cancelled here must not end the write halfway, or the result of
        # a finished verifier would be lost. `kept` waits for the same future.
        await asyncio.shield(self._spooling)

    async def _replace(self, draft: Draft) -> None:
        """Store the record with the judge's answer, then drop the one without it."""
        self._replaced, self._is_provisional = self._spooled(), False
        self._spooling = self._runtime.spooled(partial(self._make, draft, None))
        if await asyncio.shield(self._spooling) and self._replaced:
            await self._runtime.in_thread(self._replaced.drop)

    def _spooled(self) -> SpooledRecord | None:
        """The record on disk, as far as it is there."""
        if self._spooling is None or self._spooling.cancelled() or self._spooling.exception():
            return None
        return self._spooling.result()

    def _make(self, draft: Draft, failure: TrajectoryFailure | None) -> tuple[str, bytes]:
        runtime = self._runtime
        cap_bytes = runtime.bodies.max_bytes
        self._draft, self._spent = draft, draft.spent
        record, body = self._final = final_record(
            draft, failure, owner=runtime.owner, host=runtime.host, cap_bytes=cap_bytes
        )
        return record.trajectory_id, body

    @property
    def exists(self) -> bool:
        """Whether the record exists, as far as it is known without waiting."""
        return self._final is not None

    async def kept(self) -> bool:
        """Whether the record exists; waits while it is being written."""
        if self._spooling is not None:
            if not self._spooling.done():
                await asyncio.wait({self._spooling})
            if self._final is None:  # making it failed; a record of that failure may succeed
                self._spooling = None
        return self._final is not None

    async def publish(self) -> str:
        """Publish the record as soon as Redis and the object store allow it.

        Returns a short text for Flower: stop reason, score and the ledger's answer.

        Raises:
            RuntimeError: there is no record.
        """
        if self._final is None or self._spooling is None:
            raise RuntimeError("there is no record to publish")
        runtime, (record, body) = self._runtime, self._final
        spooled = self._spooled()
        verdict: PublishVerdict = "unstored"
        while verdict == "unstored":
            stored = await runtime.stored(record, body)
            if record.failure:
                await self._report_log()
            publication = transitions.publish(
                record,
                stored,
                owner=runtime.owner,
                finished_ttl_s=runtime.results.finished_ttl_s,
                results=runtime.results,
                spent=self._spent,
            )
            # With the answer, in the thread that gets it: it counts even if we are cancelled.
            settle = partial(self._settle, record, body, spooled)
            verdict = await runtime.answered(publication.then(settle))
        name, reason, score = record.trajectory_id, record.stop_reason, record.score
        extra = {"action": "published"}
        logger.info("%s %s: score %s, %s", name, reason, score, verdict, extra=extra)
        return f"{reason} {score} ({verdict})"

    async def _report_log(self) -> None:
        """Store our log beside a failure, for a dead letter, which can do without it."""
        runtime = self._runtime
        try:
            await runtime.until_redis_answers(runtime.report_log, runtime.ledger)
        except Exception:
            logger.exception("the log cannot be stored", extra={"action": "log_unsaid"})

    def abandon(self) -> None:
        """Leave the record of a task that ends to the worker's periodic work, unless Redis has it.

        That publishes what is on disk.
        """
        if self._spooling is not None and not self._spooling.done():
            self._spooling.add_done_callback(lambda _: self.abandon())
        elif kept := self._spooled():
            self._runtime.spool.abandon(kept)

    def _settle(
        self,
        record: ScoredTrajectory,
        body: bytes,
        spooled: SpooledRecord | None,
        verdict: PublishVerdict,
    ) -> PublishVerdict:
        """Give up the lease and the spooled record, now that Redis has answered. Safe to repeat."""
        runtime = self._runtime
        # Redis first, then lease and file: a crash in between repeats the publication, which Redis
        # answers `final`. In the other order it would lose the record.
        if verdict != "unstored":
            runtime.settle(self._claim)
            runtime.published(record, verdict)
            if self._draft:
                runtime.slots.published(self._draft, record, verdict)
            if verdict == "unknown" and spooled is None:  # this is the only copy
                [spooled] = runtime.keep([(record.trajectory_id, body)])  # there may be room now
            if spooled:
                put_away(spooled, record, verdict)
            if self._replaced:
                self._replaced.drop()
        return verdict
