"""The final record of one attempt: made once, stored on disk first, then published."""

from __future__ import annotations

import asyncio
import logging

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import Claim, PublishVerdict
from hermes_queue.models import ScoredTrajectory
from workers.draft import Draft
from workers.record import final_record
from workers.runtime import Runtime
from workers.spool import SpooledRecord
from workers.upkeep.recovery import put_away

logger = logging.getLogger(__name__)


class Outbox:
    """Owns the record of one attempt. Once it exists, nothing replaces it."""

    def __init__(self, runtime: Runtime, claim: Claim) -> None:
        self._runtime = runtime
        self._claim = claim
        self._spooling: asyncio.Future[None] | None = None
        self._final: tuple[ScoredTrajectory, bytes] | None = None
        """The record and its encoding, once it exists."""
        self._spooled: SpooledRecord | None = None

    async def keep(self, draft: Draft, failure: TrajectoryFailure | None = None) -> None:
        """Make the record and store it durably on disk: from here on it cannot be lost.

        Does nothing if it exists already. Finishes even if the caller is cancelled.
        """
        if self._spooling is None:
            self._spooling = asyncio.ensure_future(
                self._runtime.in_thread(self._keep_now, draft, failure)
            )
        # Shielded: a caller that is cancelled here must not end the write halfway, or the result of
        # a finished verifier would be lost. `kept` waits for the same future.
        await asyncio.shield(self._spooling)

    def _keep_now(self, draft: Draft, failure: TrajectoryFailure | None) -> None:
        runtime = self._runtime
        cap_bytes = runtime.bodies.max_bytes
        self._final = final_record(
            draft, failure, owner=runtime.owner, host=runtime.host, cap_bytes=cap_bytes
        )
        self._spool_now(*self._final)

    def _spool_now(self, record: ScoredTrajectory, body: bytes) -> None:
        name = record.trajectory_id
        try:
            self._spooled = self._runtime.spool.put(name, body)
        except OSError as error:
            extra = {"action": "spool_failed"}
            logger.error("spool: %s; %s is published from memory", error, name, extra=extra)

    async def kept(self) -> bool:
        """Whether the record exists; waits while it is being written."""
        if self._spooling is not None:
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
        if self._final is None:
            raise RuntimeError("there is no record to publish")
        record, body = self._final
        verdict: PublishVerdict = "unstored"
        while verdict == "unstored":
            stored = await self._runtime.stored(record, body)
            publish = self._publish_now
            verdict = await self._runtime.until_redis_answers(publish, record, body, stored)
        name, reason, score = record.trajectory_id, record.stop_reason, record.score
        extra = {"action": "published"}
        logger.info("%s %s: score %s, %s", name, reason, score, verdict, extra=extra)
        return f"{reason} {score} ({verdict})"

    def _publish_now(self, record: ScoredTrajectory, body: bytes, stored: bytes) -> PublishVerdict:
        """Publish, then give up the lease and the spool file. Safe to repeat."""
        runtime = self._runtime
        if record.failure:
            runtime.report_log(runtime.ledger)
        # Redis first, then lease and file: a crash in between repeats the publication, which Redis
        # answers `final`. In the other order it would lose the record.
        verdict = runtime.ledger.publish(
            record, stored, owner=runtime.owner, finished_ttl_s=runtime.results.finished_ttl_s
        )
        if verdict != "unstored":
            runtime.settle(self._claim)
            runtime.published(record, verdict)
            if verdict == "unknown" and self._spooled is None:
                self._spool_now(record, body)  # the disk may have room, and this is the only copy
            if self._spooled:
                put_away(self._spooled, record, verdict)
        return verdict
