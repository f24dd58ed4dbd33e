"""Notes in the journal what the replies to a program cost.

Its processes cannot be restored, so that another worker starts it anew, but the run has paid.
"""

from __future__ import annotations

import asyncio
import logging
import time

from hermes_queue.bodies.steps import JournalPaid, decode_entry, encode_entry
from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.ledger import Claim
from hermes_queue.ledger.fleet.journal import append, read_journal
from workers.draft import Draft
from workers.runtime import Runtime

logger = logging.getLogger(__name__)


async def note_replies(runtime: Runtime, claim: Claim, draft: Draft) -> None:
    """Keep one entry with all of the attempt's replies until cancelled, or the lease is lost.

    As of a loop's turns, there is none in the first minute, then it is as fresh as the lease.
    """
    began, noted, settings = time.monotonic(), 0, runtime.resume
    before, result = None, draft.agent
    while True:
        await asyncio.sleep(runtime.lease.renew_s)
        turns = len(result.turns)
        due = turns >= settings.snapshot_turns or time.monotonic() - began >= settings.snapshot_s
        if turns == noted or not due:
            continue
        try:
            if before is None:
                before = await _others(runtime, claim)
            entry = JournalPaid(epoch=claim.epoch, turns=turns, usage=result.usage)
            verdict = await runtime.once(
                append(
                    claim,
                    [encode_entry(entry)],
                    owner=runtime.owner,
                    after=before,
                    ttl_s=settings.ttl_s,
                    spent=draft.spent,
                )
            )
        except (RedisUnavailable, RedisFull) as error:
            extra = {"action": "journal_wait"}
            logger.info("replies are not noted yet: %s", error, extra=extra)
            continue
        if verdict == "stale":
            return
        # A gap: the entries of earlier attempts have expired.
        before, noted = (0, noted) if verdict == "gap" else (before, turns)


async def _others(runtime: Runtime, claim: Claim) -> int:
    """Number of entries of earlier attempts. 0 if they cannot be read: they are replaced."""

    def count() -> int:
        name, most = claim.trajectory_id, runtime.resume.max_turns
        found = read_journal(runtime.ledger, name, most=most, most_bytes=runtime.resume.max_bytes)
        entries = [decode_entry(body) for body in found]
        return sum(isinstance(entry, JournalPaid) for entry in entries)

    try:
        return await runtime.in_thread(count)
    except ValueError:
        return 0
