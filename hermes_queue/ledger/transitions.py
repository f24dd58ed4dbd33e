"""Begin, requeue and publish as calls that travel together: workers make them by the thousand."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, cast

from hermes_queue.bodies import codec
from hermes_queue.bodies.store import ClaimCheck
from hermes_queue.bodies.summary import summary_of
from hermes_queue.errors import CAUSES, RedisFull
from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.ledger.answers import (
    BOOKED_TOKENS,
    BOOKED_USD,
    NOTHING_SPENT,
    Begun,
    Claim,
    PublishVerdict,
    Spent,
)
from hermes_queue.ledger.attempts import packed
from hermes_queue.ledger.tasks.task import member_of
from hermes_queue.models import ATTEMPT_SUMMARY, AttemptRecord, ScoredTrajectory
from hermes_queue.policy import oldest_number
from hermes_queue.settings import ResultSettings, RetrySettings, TaskMemorySettings
from hermes_queue.wire.ids import group_of, run_of

logger = logging.getLogger(__name__)

SLOTS = 1024
"""Calls of `begin` that one owner may have under way, or yet to repeat, at a time."""


def begin(
    trajectory_id: str,
    attempt: int,
    *,
    owner: str,
    lease_s: float,
    nonce: str,
    results: ResultSettings,
    lanes: Sequence[str] = (),
    slot: int = 0,
    ready: str = "",
) -> ScriptCall[Begun]:
    """Take the lease of a trajectory, or learn why it may not run.

    With `lanes`, it is the trajectory that is next in these, see docs/scheduling.md; the named one
    only tells that there are some. `nonce` identifies this delivery: a call that is repeated
    because its answer was lost gets the same answer, not `busy`. `slot` is a number that no other
    call of this owner has that may still be repeated. `ready` has the `needs` of jobs for which the
    owner's host is prepared, with a blank before and after each: of the groups that may begin
    next, one of these is preferred.
    """

    def read(answer: Any) -> Begun:
        begun = _begun(answer)
        warn_of_budget(run_of(begun.trajectory_id), answer.warning)
        return begun

    return ScriptCall.of(
        "begin",
        read,
        id=trajectory_id,
        group_id=group_of(trajectory_id),
        run_id=run_of(trajectory_id),
        attempt=attempt,
        owner=owner,
        lease_s=lease_s,
        nonce=nonce,
        soft_max_groups=results.soft_max_groups,
        soft_max_bytes=results.soft_max_bytes,
        slot=slot % SLOTS,
        ready=ready,
        lanes=lanes,
    )


def _begun(answer: Any) -> Begun:
    verdict = answer.verdict.decode()
    if verdict != "run":
        return Begun(verdict, trajectory_id=answer.id.decode(errors="replace"))
    return Begun(
        verdict,
        answer.epoch,
        answer.attempt,
        answer.deaths,
        answer.job,
        float(answer.used_s),
        tuple(answer.attempts.splitlines()),
        int(answer.policy_version) if answer.policy_version else None,
        queued_at=float(answer.queued_at) if answer.queued_at else None,
        begun_at=float(answer.begun_at) if answer.begun_at else None,
        cancel=answer.cancel.decode(),
        any_poison=bool(answer.any_poison),
        has_journal=bool(answer.journal),
        booked_epoch=int(answer.booked or 0),
        trajectory_id=answer.id.decode(),
        handed=answer.handed.decode(errors="replace"),
        needs=answer.needs.decode(),
    )


def requeue(
    claim: Claim,
    *,
    owner: str,
    retry: RetrySettings,
    used_s: float = 0.0,
    delay_s: float = 0.0,
    failed_attempt: AttemptRecord | None = None,
    spent: Spent = NOTHING_SPENT,
    continued: bool = False,
    is_work_lost: bool = False,
) -> ScriptCall[bool]:
    """Give a running job back: for a retry with a `failed_attempt`, else as a hand-back.

    The transcripts of the newest failed attempts are kept, as far as
    `RetrySettings.evidence_total_bytes` allows. `used_s` counts towards the total deadline of all
    attempts, `spent` towards the run's budgets. `continued`: the attempt continued the turns in the
    journal, so that `spent` has what was not booked of their tokens. `is_work_lost`: what was
    handed over to be graded is gone; the agent begins anew.

    The result is False if the lease was no longer ours; then another worker has the job.
    """
    run_id = run_of(claim.trajectory_id)

    def read(answer: Any) -> bool:
        warn_of_budget(run_id, answer.warning)
        return bool(answer.verdict == b"ok")

    facts, transcript = packed(failed_attempt) if failed_attempt else ("", "")
    return ScriptCall.of(
        "requeue",
        read,
        id=claim.trajectory_id,
        run_id=run_id,
        owner=owner,
        epoch=claim.epoch,
        attempts_added=1 if failed_attempt else 0,
        delay_s=max(0.0, delay_s),
        facts=facts,
        used_s=max(0.0, used_s),
        cost_usd=spent.cost,
        tokens=spent.tokens,
        continued=int(continued),
        lost=int(is_work_lost),
        transcript=transcript,
        evidence_bytes=retry.evidence_total_bytes,
    )


def publish(
    record: ScoredTrajectory,
    body: bytes,
    *,
    owner: str,
    finished_ttl_s: int,
    results: ResultSettings,
    spent: Spent | None = None,
) -> ScriptCall[PublishVerdict]:
    """Make a trajectory final; if that decides its group, close the group.

    Verdicts: `ok`, `outdated`, `group`, `dropped`: accepted now (`outdated`: it is too old to be a
    member; `group`: its group was published to the stream; `dropped`: its group was dropped by its
    policy). `surplus`: kept as an extra of a group that closed without it. `final`: it was accepted
    before. `stale`: a failure of an attempt that is not current. `unstored`: the object that `body`
    claims is not listed (`note_object`), and nothing was published.

    `spent` is what counts in the run's budgets; None = all that the record says, without what its
    events name as booked: of a record that was found on disk nothing else is known.

    The result is `RedisFull` if too many results wait for readers (`ResultSettings`), or Redis has
    no room; then nothing was published.
    """
    claim, spent = ClaimCheck.parse(body), spent or _spent(record)

    def read(answer: Any) -> PublishVerdict:
        warn_of_budget(record.run_id, answer.warning)
        if answer.verdict == b"full":
            raise RedisFull(
                "the results stream is full: too many groups wait for a consumer group that has "
                "not acknowledged them (see hermes-queue groups list)"
            )
        return cast(PublishVerdict, answer.verdict.decode())

    return ScriptCall.with_body(
        "publish",
        read,
        body=body,
        id=record.trajectory_id,
        group_id=record.group_id,
        run_id=record.run_id,
        owner=owner,
        epoch=record.epoch,
        score=_score(record),
        object=claim and f"{record.trajectory_id} {claim.url}",
        sample_index=record.sample_index,
        finished_ttl_s=finished_ttl_s,
        schema_version=record.schema_version,
        codec=codec.CODEC,
        refillable=bool(record.failure and record.failure.refillable),
        failure=_failure(record, results.dead_retention_s),
        hard_max_groups=results.hard_max_groups,
        hard_max_bytes=results.hard_max_bytes,
        cost_usd=spent.cost,
        tokens=spent.tokens,
        policy_oldest=oldest_number(record),
        summary=summary_of(record),
    )


def _spent(record: ScoredTrajectory) -> Spent:
    """By the agent and by its judge, as far as it is not booked.

    The report is the env's, so any key may have any type.
    """
    spent, judge = Spent.of(record.usage, record.cost_usd), record.report.get("judge")
    known = judge if isinstance(judge, dict) else {}
    counts = [known.get(name) for name in ("prompt_tokens", "completion_tokens")]
    tokens = sum(n for n in counts if isinstance(n, int) and 0 <= n < 2**31)
    events = [each for each in record.events if isinstance(each.get(BOOKED_TOKENS), int)]
    booked = [Spent(each[BOOKED_TOKENS], each.get(BOOKED_USD)) for each in events[-1:]]
    return (spent + Spent(tokens)).without(*booked or [NOTHING_SPENT])


def _score(record: ScoredTrajectory) -> float | str | None:
    """The score as `publish.lua` takes it."""
    if record.status == "unscored":
        return "unscored"
    return None if record.score is None else float(record.score)


def _failure(record: ScoredTrajectory, remember_s: float) -> str:
    """The failure of a record as `publish.lua` takes it, as JSON; empty if there is none.

    `dead`: it becomes a dead letter. `keep`: the job is kept for `run retry`, unless it is
    refilled. `item`: its row is remembered as poison for `remember_s` seconds. `task`: the deaths
    are counted in the memory of this task.
    """
    failure = record.failure
    if failure is None:
        return ""
    row = CAUSES.get(failure.kind) or CAUSES[failure.cause]
    attempts = [each.model_dump_json(include=ATTEMPT_SUMMARY) for each in record.attempts]
    facts = {
        "cause": failure.kind if row.dead_letter else failure.cause,
        "reason": f"{failure.type}: {failure.message}",
        "stage": failure.stage,
        "attempts": "\n".join(attempts),
        "dead": row.dead_letter,
        "keep": row.runs_again and not row.dead_letter,
    }
    item = record.provenance.item_sha256 if failure.kind == "poison" else ""
    if not item:
        return json.dumps(facts)
    memory = TaskMemorySettings()
    if memory.enabled:
        facts |= {"task": member_of(record.env, item), "tasks_ttl_s": memory.kept_s}
    return json.dumps(facts | {"item": item, "remember_s": remember_s})


def warn_of_budget(run_id: str, warning: bytes) -> None:
    """Log a script's warning about a run's budget, if there is one."""
    if warning:
        text = warning.decode(errors="replace")
        logger.warning("run:%s: %s", run_id, text, extra={"action": "budget"})
