"""What a failure that needs a person leaves in the stream of dead letters."""

from __future__ import annotations

import json

from hermes_queue.models import ScoredTrajectory

POISON = "PoisonJob"
"""Type of the failure of a job that kills its workers."""


def letter(record: ScoredTrajectory) -> str:
    """The letter's own fields as JSON; empty when the record needs none.

    A bug of an env and a job that kills its workers would fail again; every other failure is
    told by the record.
    """
    failure = record.failure
    if failure is None or (failure.cause != "env_bug" and failure.type != POISON):
        return ""
    return json.dumps(
        {
            "cause": "poison" if failure.type == POISON else failure.cause,
            "reason": f"{failure.type}: {failure.message}",
            "stage": failure.stage,
            "attempts": "\n".join(each.model_dump_json() for each in record.attempts),
        }
    )
