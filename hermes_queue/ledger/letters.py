"""What a failure that needs a person leaves in the stream of dead letters."""

from __future__ import annotations

import json

from hermes_queue.models import ATTEMPT_SUMMARY, ScoredTrajectory

POISON = "PoisonJob"
"""Type of the failure of a job that kills its workers."""


def described_failure(record: ScoredTrajectory) -> str:
    """What `publish.lua` is told of a failure, as JSON; empty when there is none.

    `dead`: a person has to look, because a bug of an env and a job that kills its workers would
    fail again. `keep`: the job is kept for `run retry`, unless a refill takes its place.
    """
    failure = record.failure
    if failure is None:
        return ""
    dead = failure.cause == "env_bug" or failure.type == POISON
    return json.dumps(
        {
            "cause": "poison" if failure.type == POISON else failure.cause,
            "reason": f"{failure.type}: {failure.message}",
            "stage": failure.stage,
            "attempts": "\n".join(
                each.model_dump_json(include=ATTEMPT_SUMMARY) for each in record.attempts
            ),
            "dead": dead,
            "keep": not dead and failure.cause != "cancelled",
        }
    )
