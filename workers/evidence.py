"""A failed attempt that is repeated: when, and what is kept of it, bounded and without secrets."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hermes_queue.agent.loop import AgentResult
from hermes_queue.errors import TrajectoryFailure, WorkLost
from hermes_queue.ledger.attempts import MAX_EVIDENCE_BYTES, packed
from hermes_queue.models import AttemptRecord, Message
from hermes_queue.settings import RetrySettings
from hermes_queue.telemetry.scrubbing import scrubber
from workers.draft import Draft
from workers.record import describe
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PLAIN_PER_PACKED = 16
"""Maximum ratio of the text that is packed to the bytes that may be kept: an agent's text may pack
to next to nothing, and every reader of the record unpacks it."""
_EVENTS_SHARE = 4
"""Events get one part in this many of the room."""


def attempt_record(draft: Draft, failure: TrajectoryFailure, runtime: Runtime) -> AttemptRecord:
    """Return the attempt with as much of its transcript as fits. Call it in a thread.

    If it only had to measure work that another attempt will measure, the agent's tokens and
    transcript are not its own, and not in it.
    """
    agent = AgentResult() if draft.is_handed and not isinstance(failure, WorkLost) else draft.agent
    facts = AttemptRecord(
        attempt=draft.attempt,
        epoch=draft.epoch,
        failure=describe(failure),
        stage_seconds=dict(draft.clock.stage_seconds),
        host=runtime.host,
        worker=runtime.owner,
        sandbox_id=draft.sandbox_id,
        begun_at=draft.begun_at,
        usage=agent.usage,
        cost_usd=draft.total_usd if agent is draft.agent else draft.spent.cost_usd,
        message_count=len(agent.messages),
    )
    try:
        return _with_transcript(facts, agent, runtime.retry.evidence_bytes)
    except Exception as error:  # noqa: BLE001 - what cannot travel must not cost the retry
        extra = {"action": "attempt_unreadable"}
        logger.warning("the transcript of a failed attempt cannot be kept: %s", error, extra=extra)
        return facts


def _with_transcript(facts: AttemptRecord, agent: AgentResult, cap_bytes: int) -> AttemptRecord:
    """Return `facts` with the newest messages and events that pack into `cap_bytes`."""
    room = min(cap_bytes * _PLAIN_PER_PACKED, MAX_EVIDENCE_BYTES // 2)
    events = _newest(agent.events, room // _EVENTS_SHARE, lambda event: len(repr(event)))
    messages = _newest(agent.messages, room, _characters)
    while messages or events:
        kept = facts.model_copy(update={"messages": tuple(messages), "events": tuple(events)})
        kept = scrubber().attempt(kept)
        if len(packed(kept)[1]) <= cap_bytes:
            return kept
        messages, events = messages[(len(messages) + 1) // 2 :], events[(len(events) + 1) // 2 :]
    return facts


def _newest(items: Sequence[T], room: int, size: Callable[[T], int]) -> list[T]:
    """Return the last of `items` that fit."""
    first = len(items)
    while first and (room := room - size(items[first - 1])) >= 0:
        first -= 1
    return list(items[first:])


def _characters(message: Message) -> int:
    texts: list[Any] = [message.content, message.reasoning]
    texts += [call.function.arguments for call in message.tool_calls]
    return 100 + sum(len(text or "") for text in texts)


def retry_delay_s(
    failure: TrajectoryFailure,
    earlier: Sequence[AttemptRecord],
    settings: RetrySettings,
    *,
    left_s: float,
) -> float | None:
    """Seconds to wait before the next attempt; None when there is none.

    Only failures of infrastructure are repeated. Each cause has a limit, see `errors.CAUSES`: a
    rate-limited model recovers with patience, a package that does not install seldom does.
    `earlier` attempts failed before this one. `left_s` is what is left of the total deadline of all
    attempts; waiting uses none of it.
    """
    setting = failure.consequences.attempts
    attempts = len(earlier) + 1
    alike = 1 + sum(record.failure.cause == failure.cause for record in earlier)
    if setting is None or left_s <= 0 or attempts >= settings.max_attempts:
        return None
    if alike >= getattr(settings, setting):
        return None
    delay_s: float = min(settings.backoff_s * 2 ** (attempts - 1), settings.backoff_max_s)
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
