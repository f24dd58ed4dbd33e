"""Failures that need a person, as entries of the stream of dead letters."""

from __future__ import annotations

import json

from hermes_queue.errors import CAUSES
from hermes_queue.models import ATTEMPT_SUMMARY, ScoredTrajectory


def described_failure(record: ScoredTrajectory, remember_s: float) -> str:
    """The failure of a record as `publish.lua` takes it, as JSON; empty if there is none.

    `dead`: it becomes a dead letter. `keep`: the job is kept for `run retry`, unless it is
    refilled. `item`: its row is remembered as poison for `remember_s` seconds.
    """
    failure = record.failure
    if failure is None:
        return ""
    row = CAUSES.get(failure.kind) or CAUSES[failure.cause]
    item = record.provenance.item_sha256 if failure.kind == "poison" else ""
    memory = {"item": item, "remember_s": remember_s} if item else {}
    return json.dumps(
        memory
        | {
            "cause": failure.kind if row.dead_letter else failure.cause,
            "reason": f"{failure.type}: {failure.message}",
            "stage": failure.stage,
            "attempts": "\n".join(
                each.model_dump_json(include=ATTEMPT_SUMMARY) for each in record.attempts
            ),
            "dead": row.dead_letter,
            "keep": row.runs_again and not row.dead_letter,
        }
    )
