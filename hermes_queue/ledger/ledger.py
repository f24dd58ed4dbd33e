"""The ledger: leases, finality, groups and runs, one Lua call per transition.

The broker owns waiting jobs, the ledger owns running ones. A trajectory is `queued` (its message
is in the broker, or its id in `delayed`), `running` (leased), `final` or `cancelled`. Every
method is one round trip, atomic on the server, and safe to repeat. The class is synchronous and
thread-safe; coroutines call it from a thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import redis

from hermes_queue.bodies import codec
from hermes_queue.bodies.store import ClaimCheck
from hermes_queue.errors import CAUSES, RedisFull
from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import Deployment
from hermes_queue.ledger.answers import (
    ENDED,
    NOTHING_SPENT,
    RUN_COUNTERS,
    Accepted,
    Begun,
    Claim,
    DueJob,
    JobRows,
    Notice,
    PublishVerdict,
    QueueKeys,
    RunStatus,
    Spent,
)
from hermes_queue.ledger.attempts import packed
from hermes_queue.ledger.run_lock import explained_refusal
from hermes_queue.models import ATTEMPT_SUMMARY, AttemptRecord, ScoredTrajectory, TrajectoryJob
from hermes_queue.policy import oldest_number
from hermes_queue.settings import ResultSettings, RetrySettings
from hermes_queue.wire.ids import group_of, run_of

logger = logging.getLogger(__name__)

RUN_TTL_S = 90 * 86400
PUBLISH_CLAIM_S = 30.0
"""Longest time of a producer between claiming a batch of jobs and publishing its messages."""
MOVE_CLAIM_S = 10.0
"""The same for a mover, whose jobs may have waited for a dead worker already."""
RECONCILED_AT_ONCE = 1000
SWEPT_AT_ONCE = 1000


def _failure(record: ScoredTrajectory, remember_s: float) -> str:
    """The failure of a record as `publish.lua` takes it, as JSON; empty if there is none.

    `dead`: it becomes a dead letter. `keep`: the job is kept for `run retry`, unless it is
    refilled. `item`: its row is remembered as poison for `remember_s` seconds.
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
    return json.dumps(facts | ({"item": item, "remember_s": remember_s} if item else {}))


def _warn(run_id: str, warning: bytes) -> None:
    """Log a script's warning about a run's budget, if there is one."""
    if warning:
        logger.warning("run:%s: %s", run_id, warning.decode(), extra={"action": "budget"})


class Ledger(Deployment):
    """Typed access to the ledger's scripts and keys."""

    def __init__(self, client: redis.Redis, *, prefix: str = "hq:", url: str = "") -> None:
        super().__init__(client, prefix=prefix, url=url)
        self._results = ResultSettings()
        self._retry = RetrySettings()

    # --- producers ------------------------------------------------------------------------

    def enqueue(
        self, run_id: str, jobs: Sequence[TrajectoryJob], *, config: Mapping[str, Any] | None
    ) -> Accepted:
        """Claim `jobs` of one run; returns those that were not claimed before.

        The first `config` locks the run's configuration; None skips the comparison. The caller
        publishes their messages and then calls `published`. If it dies in between, a
        worker's mover publishes them after `PUBLISH_CLAIM_S`.

        Raises:
            ConfigurationError: the run was begun with another `config`, a group with another
                size or policy, or it is cancelled, or a job's ids do not fit; nothing was
                claimed.
        """
        sent = "" if config is None else json.dumps(dict(config), sort_keys=True)
        rows = JobRows(jobs)
        try:
            answer = self.call(
                "enqueue",
                run_id=run_id,
                claim_s=PUBLISH_CLAIM_S,
                run_ttl_s=RUN_TTL_S,
                config=sent,
                finished_ttl_s=self._results.finished_ttl_s,
                bodies=rows.bodies,
                groups=list(rows.groups),
                jobs=rows.jobs,
            )
        except redis.ResponseError as error:
            refusal = explained_refusal(run_id, str(error), sent)
            if refusal is None:
                raise
            raise refusal from error
        return Accepted([jobs[place - 1] for place in answer.positions], answer.claim.decode())

    def published(
        self, trajectory_ids: Iterable[str], *, claim: str = "", first: bool = False
    ) -> None:
        """Confirm that the messages of these jobs are in the broker.

        `claim` is the one from `enqueue` or `due`; `first`: they are not in a retry queue.
        """
        ids = list(trajectory_ids)
        if ids:
            self.call("published", claim=claim, is_retry=bool(claim) and not first, ids=ids)

    def reconcile(
        self, lane: str, *, queues: QueueKeys, age_s: float, retry_age_s: float
    ) -> list[str]:
        """Have jobs of a lane published again whose message the broker lost; see `reconcile.lua`.

        Jobs younger than `age_s` are left alone; in the retry queue, those younger than
        `retry_age_s`.
        """
        found = self.call(
            "reconcile",
            lane=lane,
            retry_lists=queues.retry,
            first_lists=queues.first,
            age_s=age_s,
            retry_age_s=retry_age_s,
            most=RECONCILED_AT_ONCE,
        )
        return [part.decode(errors="replace") for part in found]

    def run_status(self, run_id: str) -> RunStatus:
        """Counters of a run; all zero if it is unknown."""
        raw = self.hash_fields(f"run:{run_id}", *RUN_COUNTERS)
        counts = dict(zip(RUN_COUNTERS, (int(value or 0) for value in raw), strict=True))
        settled = sum(counts[name] for name in ("running", *ENDED))
        return RunStatus(queued=max(0, counts["total"] - settled), **counts)

    def backlog(self) -> int:
        """Number of jobs of all lanes that wait for a worker, without those parked by a pause."""
        with explained(self.url), self.client.pipeline(transaction=False) as pipe:
            pipe.zcard(self.key("waiting"))
            pipe.zcard(self.key("delayed"))
            return sum(pipe.execute())

    # --- workers --------------------------------------------------------------------------

    def begin(
        self, trajectory_id: str, attempt: int, *, owner: str, lease_s: float, nonce: str
    ) -> Begun:
        """Take the lease of a trajectory, or learn why it may not run.

        `nonce` identifies this delivery: a call that is repeated because its answer was lost
        gets the same answer, not `busy`.
        """
        answer = self.call(
            "begin",
            id=trajectory_id,
            group_id=group_of(trajectory_id),
            run_id=run_of(trajectory_id),
            attempt=attempt,
            owner=owner,
            lease_s=lease_s,
            nonce=nonce,
            soft_max_groups=self._results.soft_max_groups,
            soft_max_bytes=self._results.soft_max_bytes,
        )
        _warn(run_of(trajectory_id), answer.warning)
        verdict = answer.verdict.decode()
        if verdict != "run":
            return Begun(verdict)
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
        )

    def renew(
        self,
        claims: Sequence[Claim],
        *,
        owner: str,
        lease_s: float,
        stages: Mapping[Claim, str] | None = None,
    ) -> dict[Claim, Notice]:
        """Renew leases; returns those that are gone, with the reason, and other notices.

        `stages` holds the stage of each, as evidence if its worker dies.
        """
        stages = stages or {}
        rows = [(claim.trajectory_id, claim.epoch, stages.get(claim, "")) for claim in claims]
        answer = self.call("renew", owner=owner, lease_s=lease_s, claims=rows)
        return {
            Claim(each.id.decode(), int(each.epoch)): cast(Notice, each.reason.decode())
            for each in answer.notices
        }

    def sweep(
        self, *, interval_s: float, gap_s: float, grace_s: float, quarantine_deaths: int = 2
    ) -> list[str]:
        """Queue the jobs of dead owners again; returns their ids. See `sweep.lua`."""
        answer = self.call(
            "sweep",
            interval_s=interval_s,
            gap_s=gap_s,
            grace_s=grace_s,
            most=SWEPT_AT_ONCE,
            quarantine_deaths=quarantine_deaths,
        )
        self._report_bad("leases", answer.bad)
        return [trajectory_id.decode() for trajectory_id in answer.taken]

    def requeue(
        self,
        claim: Claim,
        *,
        owner: str,
        used_s: float = 0.0,
        delay_s: float = 0.0,
        failed_attempt: AttemptRecord | None = None,
        spent: Spent = NOTHING_SPENT,
    ) -> bool:
        """Give a running job back: for a retry with a `failed_attempt`, else as a hand-back.

        The transcripts of the newest failed attempts are kept, as far as
        `RetrySettings.evidence_total_bytes` allows. `used_s` counts towards the total deadline
        of all attempts, `spent` towards the run's budgets.

        Returns:
            False if the lease was no longer ours; then another worker has the job.
        """
        facts, transcript = packed(failed_attempt) if failed_attempt else ("", "")
        answer = self.call(
            "requeue",
            id=claim.trajectory_id,
            run_id=run_of(claim.trajectory_id),
            owner=owner,
            epoch=claim.epoch,
            attempts_added=1 if failed_attempt else 0,
            delay_s=max(0.0, delay_s),
            facts=facts,
            used_s=max(0.0, used_s),
            cost_usd=spent.cost,
            tokens=spent.tokens,
            transcript=transcript,
            evidence_bytes=self._retry.evidence_total_bytes,
        )
        _warn(run_of(claim.trajectory_id), answer.warning)
        return bool(answer.verdict == b"ok")

    def due(self, *, limit: int = 500) -> tuple[str, list[DueJob]]:
        """Claim delayed jobs that are due: (claim for `published`, jobs)."""
        answer = self.call("due", claim_s=MOVE_CLAIM_S, most=limit)
        self._report_bad("delayed", answer.bad)
        return answer.claim.decode(), [DueJob.of(row) for row in answer.jobs]

    def _report_bad(self, place: str, entries: Sequence[bytes]) -> None:
        """Log invalid entries that were removed."""
        if entries:
            shown = ", ".join(repr(entry[:80].decode(errors="replace")) for entry in entries[:5])
            logger.warning(
                "removed %d invalid entries of %s, which another program must have written: %s",
                len(entries),
                self.key(place),
                shown,
                extra={"action": "bad_entries"},
            )

    def publish(
        self, record: ScoredTrajectory, body: bytes, *, owner: str, finished_ttl_s: int
    ) -> PublishVerdict:
        """Make a trajectory final; if that decides its group, close the group.

        Verdicts: `ok`, `outdated`, `group`, `dropped`: accepted now (`outdated`: it is too old
        to be a member; `group`: its group was published to the stream; `dropped`: its group was
        dropped by its policy). `surplus`: kept as an extra of a group that closed without it.
        `final`: it was accepted before. `stale`: a failure of an attempt that is not current.
        `unstored`: the object that `body` claims is not listed (`note_object`), and nothing was
        published.

        Raises:
            RedisFull: too many results wait for readers (`ResultSettings`), or Redis has no
                room; nothing was published.
            RedisUnavailable: it may be published.
        """
        claim, spent = ClaimCheck.parse(body), Spent.of(record.usage, record.cost_usd)
        answer = self.call(
            "publish",
            id=record.trajectory_id,
            group_id=record.group_id,
            run_id=record.run_id,
            owner=owner,
            epoch=record.epoch,
            score=None if record.score is None else float(record.score),
            body=body,
            object=claim and f"{record.trajectory_id} {claim.url}",
            sample_index=record.sample_index,
            finished_ttl_s=finished_ttl_s,
            schema_version=record.schema_version,
            codec=codec.CODEC,
            refillable=bool(record.failure and record.failure.refillable),
            failure=_failure(record, self._results.dead_retention_s),
            hard_max_groups=self._results.hard_max_groups,
            hard_max_bytes=self._results.hard_max_bytes,
            cost_usd=spent.cost,
            tokens=spent.tokens,
            policy_oldest=oldest_number(record),
        )
        _warn(record.run_id, answer.warning)
        if answer.verdict == b"full":
            raise RedisFull(
                "the results stream is full: too many groups wait for a consumer group that has "
                "not acknowledged them (see hermes-queue groups list)"
            )
        return cast(PublishVerdict, answer.verdict.decode())
