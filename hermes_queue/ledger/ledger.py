"""The ledger: leases, finality, groups and runs, one Lua call per transition.

The broker owns waiting jobs, the ledger owns running ones. A trajectory is `queued`
(its message is in the broker, or its id in `delayed`), `running` (leased), `final` or
`cancelled`. Every method is one round trip, atomic on the server, and safe to repeat.
The class is synchronous and thread-safe; coroutines call it from a thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import redis

from hermes_queue.bodies import codec
from hermes_queue.bodies.claim import ClaimCheck
from hermes_queue.errors import RedisFull
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
    Notice,
    PublishVerdict,
    QueueKeys,
    RunStatus,
    Spent,
    due_jobs,
)
from hermes_queue.ledger.attempts import packed
from hermes_queue.ledger.letters import described_failure
from hermes_queue.ledger.run_lock import explained_refusal
from hermes_queue.models import AttemptRecord, ScoredTrajectory, TrajectoryJob
from hermes_queue.policy import oldest_number
from hermes_queue.settings import ResultSettings, RetrySettings

logger = logging.getLogger(__name__)

RUN_TTL_S = 90 * 86400
PUBLISH_CLAIM_S = 30.0
"""How long a producer may take between claiming a batch of jobs and publishing its messages."""
MOVE_CLAIM_S = 10.0
"""Likewise a mover, whose jobs may have waited for a dead worker already."""
RECONCILED_AT_ONCE = 1000


def _run_key(trajectory_id: str) -> str:
    return f"run:{trajectory_id.rsplit('.', 2)[0]}"


def _say(run_key: str, warning: bytes) -> None:
    """Pass on what a script has to say of a run's budget."""
    if warning:
        logger.warning("%s: %s", run_key, warning.decode(), extra={"action": "budget"})


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

        The first `config` that is given locks the run's configuration; None compares nothing.

        The caller publishes their messages and then calls `published`. If it dies in
        between, a worker's mover publishes them after `PUBLISH_CLAIM_S`.

        Raises:
            ConfigurationError: the run was begun with another `config`, a group with another size
                or policy, or it is cancelled, or a job's ids do not fit; nothing was claimed.
        """
        wanted = "" if config is None else json.dumps(dict(config), sort_keys=True)
        args: list[Any] = [self.prefix, PUBLISH_CLAIM_S, RUN_TTL_S, wanted]
        args.append(self._results.finished_ttl_s)
        for job in jobs:
            args += [
                job.trajectory_id.removeprefix(f"{run_id}."),
                job.trajectory_id,
                job.group_id,
                job.group_size,
                job.env,
                job.instance_id,
                job.lane,
                job.priority,
                codec.encode_job(job),
                job.group_size + job.group_policy.extra_samples,
                job.group_policy.model_dump_json(exclude_defaults=True),
            ]
        keys = [f"run:{run_id}", f"run:{run_id}:claimed", "delayed", "runs", f"purged:{run_id}"]
        try:
            claim, *positions = self.call("enqueue", keys, args)
        except redis.ResponseError as error:
            refusal = explained_refusal(run_id, str(error), wanted)
            if refusal is None:
                raise
            raise refusal from error
        return Accepted([jobs[position - 1] for position in positions], claim.decode())

    def published(
        self, trajectory_ids: Iterable[str], *, claim: str = "", first: bool = False
    ) -> None:
        """Confirm that the messages of these jobs are in the broker.

        `claim` is what `enqueue` or `due` gave; `first`: they are not in a retry queue.
        """
        ids = list(trajectory_ids)
        if ids:
            keys = ["delayed", "waiting", "waiting:retry"]
            retry = "1" if claim and not first else ""
            self.call("published", keys, [self.prefix, claim, retry, *ids])

    def reconcile(
        self, lane: str, *, queues: QueueKeys, age_s: float, retry_age_s: float
    ) -> list[str]:
        """Have jobs published again whose message the broker lost; see `reconcile.lua`.

        Args:
            lane: whose jobs to look at.
            queues: where messages of the lane can lie.
            age_s: younger jobs are left alone.
            retry_age_s: likewise of those in the retry queue.
        """
        found = self.call(
            "reconcile",
            ["waiting", "waiting:retry", "delayed", "unacked", *queues.retry, *queues.first],
            [self.prefix, lane, age_s, retry_age_s, RECONCILED_AT_ONCE, len(queues.retry)],
        )
        return [part.decode(errors="replace") for part in found]

    def run_status(self, run_id: str) -> RunStatus:
        """Counters of a run; all zero when it is unknown."""
        with explained(self.url):
            raw: Any = self.client.hmget(self.key(f"run:{run_id}"), RUN_COUNTERS)
        counts = dict(zip(RUN_COUNTERS, (int(value or 0) for value in raw), strict=True))
        settled = sum(counts[name] for name in ("running", *ENDED))
        return RunStatus(queued=max(0, counts["total"] - settled), **counts)

    def backlog(self) -> int:
        """Jobs of all lanes that wait for a worker; those that a pause has parked do not."""
        with explained(self.url), self.client.pipeline(transaction=False) as pipe:
            pipe.zcard(self.key("waiting"))
            pipe.zcard(self.key("delayed"))
            return sum(pipe.execute())

    # --- workers --------------------------------------------------------------------------

    def begin(
        self, trajectory_id: str, attempt: int, *, owner: str, lease_s: float, nonce: str
    ) -> Begun:
        """Take the lease of a trajectory, or learn why it is not ours to run.

        `nonce` names this delivery: a call that is repeated because its answer was lost
        gets the same answer, not `busy`.
        """
        answer = self.call(
            "begin",
            [
                *(f"traj:{trajectory_id}", "leases", "delayed", "waiting"),
                *(_run_key(trajectory_id), "results", "results:bytes"),
                f"group:{trajectory_id.rpartition('.')[0]}",
            ],
            [
                *(trajectory_id, attempt, owner, lease_s, nonce, self.prefix),
                *(self._results.soft_max_groups, self._results.soft_max_bytes),
            ],
        )
        verdict = answer[0].decode()
        _say(_run_key(trajectory_id), answer[7] if verdict == "run" else b"".join(answer[1:]))
        if verdict != "run":
            return Begun(verdict)
        _, epoch, current, deaths, job, used, attempts, _, version, *times, cancel, poison = answer
        earlier, policy = tuple(attempts.splitlines()), int(version) if version else None
        queued_at, begun_at = (float(time) if time else None for time in times)
        return Begun(
            *("run", epoch, current, deaths, job, float(used), earlier, policy),
            queued_at=queued_at,
            begun_at=begun_at,
            cancel=cancel.decode(),
            any_poison=poison == b"1",
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

        `stages` says how far each is, for whoever looks into the death of its worker.
        """
        args: list[Any] = [self.prefix, owner, lease_s]
        for claim in claims:
            args += [claim.trajectory_id, claim.epoch, (stages or {}).get(claim, "")]
        flat = [part.decode() for part in self.call("renew", ["leases"], args)]
        return {
            Claim(flat[i], int(flat[i + 1])): cast(Notice, flat[i + 2])
            for i in range(0, len(flat), 3)
        }

    def sweep(
        self, *, interval_s: float, gap_s: float, grace_s: float, quarantine_deaths: int = 2
    ) -> list[str]:
        """Queue the jobs of dead owners again; returns their ids. See `sweep.lua`."""
        answer = self.call(
            "sweep",
            [
                *("leases", "delayed", "sweep:last", "totals", "lanes"),
                *("waiting", "waiting:retry", "sandboxes"),
            ],
            [self.prefix, interval_s, gap_s, grace_s, 1000, quarantine_deaths],
        )
        self._tell_bad("leases", answer[1])
        return [part.decode() for part in answer[2:]]

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
        """Give a running job back: hand-back without, retry with a `failed_attempt`.

        Of failed attempts the transcripts of the newest are kept, as many as
        `RetrySettings.evidence_total_bytes` has room for. `used_s` counts towards the total
        deadline of all attempts, `spent` towards the run's budgets.

        Returns:
            False when the lease was no longer ours; then somebody else has the job.
        """
        facts, transcript = packed(failed_attempt) if failed_attempt else ("", "")
        answer = self.call(
            "requeue",
            [
                f"traj:{claim.trajectory_id}",
                "leases",
                "delayed",
                _run_key(claim.trajectory_id),
                "totals",
            ],
            [
                claim.trajectory_id,
                owner,
                claim.epoch,
                1 if failed_attempt else 0,
                max(0.0, delay_s),
                facts,
                max(0.0, used_s),
                *spent.as_arguments,
                transcript,
                self._retry.evidence_total_bytes,
            ],
        )
        _say(_run_key(claim.trajectory_id), answer[1])
        return bool(answer[0] == b"ok")

    def due(self, *, limit: int = 500) -> tuple[str, list[DueJob]]:
        """Claim delayed jobs that are due: (claim for `published`, jobs)."""
        claim, bad, *jobs = self.call("due", ["delayed"], [self.prefix, MOVE_CLAIM_S, limit])
        self._tell_bad("delayed", bad)
        return claim.decode(), due_jobs([part.decode(errors="replace") for part in jobs])

    def _tell_bad(self, place: str, entries: Sequence[bytes]) -> None:
        """Name what was taken out because it is no job of ours."""
        if entries:
            logger.warning(
                "%d entries of %s are no jobs as we write them and were taken out; somebody writes "
                "to this Redis by hand: %s",
                len(entries),
                self.key(place),
                ", ".join(repr(entry[:80].decode(errors="replace")) for entry in entries[:5]),
                extra={"action": "bad_entries"},
            )

    def publish(
        self, record: ScoredTrajectory, body: bytes, *, owner: str, finished_ttl_s: int
    ) -> PublishVerdict:
        """Make a trajectory final, and close its group when that decides it.

        `ok`, `outdated`, `group`, `dropped`: accepted now (`outdated`: but too old to be a
        member; `group`: and the group went to the stream; `dropped`: and its policy threw it
        away). `surplus`: kept beside a group that was closed without it. `final`: it had been
        accepted before. `stale`: a failure of an attempt that is not current. `unstored`: the
        object that `body` claims is not listed (`note_object`), and nothing was published.

        Raises:
            RedisFull: as much as `ResultSettings` allows waits for its readers, or Redis has
                no room; nothing was published.
            RedisUnavailable: it may be published.
        """
        claim = ClaimCheck.parse(body)
        answer = self.call(
            "publish",
            [
                f"traj:{record.trajectory_id}",
                "leases",
                "delayed",
                f"group:{record.group_id}",
                f"body:{record.trajectory_id}",
                "results",
                f"run:{record.run_id}",
                "waiting",
                "results:bytes",
                "dead",
                "objects",
            ],
            [
                record.trajectory_id,
                owner,
                record.epoch,
                "" if record.score is None else repr(float(record.score)),
                body,
                record.sample_index,
                finished_ttl_s,
                record.schema_version,
                codec.CODEC,
                record.group_id,
                record.run_id,
                "1" if record.failure and record.failure.refillable else "0",
                self.prefix,
                self._results.hard_max_groups,
                self._results.hard_max_bytes,
                described_failure(record, self._results.dead_retention_s),
                *Spent.of(record.usage, record.cost_usd).as_arguments,
                "" if (oldest := oldest_number(record)) is None else oldest,
                f"{record.trajectory_id} {claim.url}" if claim else "",
            ],
        )
        _say(f"run:{record.run_id}", answer[1])
        if answer[0] == b"full":
            raise RedisFull(
                "the results stream is full: too many groups wait for a consumer group that has "
                "not acknowledged them (see hermes-queue groups list)"
            )
        return cast(PublishVerdict, answer[0].decode())
