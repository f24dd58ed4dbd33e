"""What a failure that needs a person leaves in the stream of dead letters."""

from __future__ import annotations

import json

from hermes_queue.models import ATTEMPT_SUMMARY, ScoredTrajectory

POISON = "PoisonJob"
"""Type of the failure of a job that kills its workers."""


def described_failure(record: ScoredTrajectory, remember_s: float) -> str:
    """What `publish.lua` is told of a failure, as JSON; empty when there is none.

    `dead`: a person has to look, because a bug of an env and a job that kills its workers would
    fail again. `keep`: the job is kept for `run retry`, unless a refill takes its place. `item`:
    its row is remembered as poison for `remember_s` seconds.
    """
    failure = record.failure
    if failure is None:
        return ""
    dead = failure.cause == "env_bug" or failure.type == POISON
    poison = failure.type == POISON
    item = record.provenance.item_sha256 if poison else ""
    memory = {"item": item, "remember_s": remember_s} if item else {}
    return json.dumps(
        memory
        | {
            "cause": "poison" if poison else failure.cause,
            "reason": f"{failure.type}: {failure.message}",
            "stage": failure.stage,
            "attempts": "\n".join(
                each.model_dump_json(include=ATTEMPT_SUMMARY) for each in record.attempts
            ),
            "dead": dead,
            "keep": not dead and failure.cause != "cancelled",
        }
    )
