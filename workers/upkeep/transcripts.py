"""Transcripts of running trajectories, for whoever looks at one: `inspect transcript ID`.

Nothing is read or kept while nobody asks. Answers are few and small, so that looking never slows
down a worker, however many look.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from hermes_queue.broker.pool.remote_control import TOO_OFTEN
from hermes_queue.models import Message
from hermes_queue.telemetry.scrubbing import scrubber
from workers.runtime import AttemptProgress, PerSecond, Runtime

ANSWER_BYTES = 256 << 10
"""JSON of the messages in one answer."""
TEXT_CHARACTERS = 16 << 10
"""Kept of each text in a message that is larger than an answer."""
MESSAGES_AT_ONCE = 500
PER_S = 4.0
"""Answers a second with messages, of the whole worker."""


class LiveTranscripts:
    """Reads what agents have said so far, on Celery's main thread.

    Args:
        runtime: knows the trajectories that run here.
        per_s: answers a second; further ones say that this was asked too often.
    """

    def __init__(self, runtime: Runtime, *, per_s: float = PER_S) -> None:
        self._runtime = runtime
        self._allowance = PerSecond(per_s)

    def read(self, trajectory_id: str, start: int) -> dict[str, Any]:
        """The messages from number `start` on, at most `ANSWER_BYTES`; `next` follows them.

        `error` instead, if it does not run here, or if there were too many questions. Secrets are
        replaced as in records.
        """
        if not self._allowance.take():
            return {"error": TOO_OFTEN}
        running = self._runtime.progress().items()
        found = next(
            (each for claim, each in running if claim.trajectory_id == trajectory_id), None
        )
        return {"error": "it does not run here"} if found is None else _answer(found, start)


def _answer(found: AttemptProgress, start: int) -> dict[str, Any]:
    total = len(found.messages)
    messages = packed(found.messages[start : min(total, start + MESSAGES_AT_ONCE)])
    return {
        "stage": found.stage,
        "attempt": found.attempt,
        "turns": found.turns,
        "age_s": round(time.monotonic() - found.since, 1),
        "messages": messages,
        "next": min(start, total) + len(messages),
        "total": total,
    }


def packed(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The first of the messages, without secrets, at most `ANSWER_BYTES`, but at least one.

    Secrets are replaced before a text is cut: half of one would not be recognized.
    """
    clean = scrubber()
    kept: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        given = clean.tree(message.model_dump(mode="json", exclude_defaults=True))
        size += _size(given)
        if size > ANSWER_BYTES:
            return kept or [_shortened(given)]
        kept.append(given)
    return kept


def _size(given: object) -> int:
    return len(json.dumps(given))


def _shortened(given: dict[str, Any]) -> dict[str, Any]:
    """A message that is too large, with its texts cut; without its calls if that is not enough."""
    short: dict[str, Any] = {name: _cut(value) for name, value in given.items()}
    if _size(short) > ANSWER_BYTES:
        short = {name: value for name, value in short.items() if isinstance(value, str)}
    return short


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS:
        left_out = len(value) - TEXT_CHARACTERS
        return f"{value[:TEXT_CHARACTERS]}\n[... {left_out} characters left out ...]"
    if isinstance(value, dict):
        return {name: _cut(each) for name, each in value.items()}
    return [_cut(each) for each in value] if isinstance(value, list) else value
