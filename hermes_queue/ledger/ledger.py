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

from hermes_queue.errors import PayloadTooLarge
from hermes_queue.keyspace.calls import Confirmation
from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import Deployment
from hermes_queue.ledger import transitions
from hermes_queue.ledger.answers import (
    DEFAULT_PART,
    NOTHING_SPENT,
    RUN_COUNTERS,
    Accepted,
    Begun,
    Claim,
    DueJob,
    JobRows,
    Notice,
    PublishVerdict,
    Recovered,
    RunPart,
    RunStatus,
    Spent,
)
from hermes_queue.ledger.run_lock import explained_refusal
from hermes_queue.models import AttemptRecord, ScoredTrajectory, TrajectoryJob
from hermes_queue.settings import ResultSettings, RetrySettings

logger = logging.getLogger(__name__)

RUN_TTL_S = 90 * 86400
CONFIG_MAX_BYTES = 1 << 20
"""Most of a run's configuration as JSON."""
PUBLISH_CLAIM_S = 30.0
"""Longest time of a producer between claiming a batch of jobs and publishing its messages."""
MOVE_CLAIM_S = 10.0
"""The same for a mover, whose jobs may have waited for a dead worker already."""
PACE_LOOK_S = 2.0
"""Shortest time between two looks for groups of a paced run that will never be trained."""
BUDGET_MARK = "$budget:"
"""Before the name of a shared budget among paced runs."""
RECONCILED_AT_ONCE = 1000
RECOVERED_AT_ONCE = 500
RECOVER_S = 5.0
"""Shortest time between two looks of the fleet for jobs that stand nowhere."""
SWEPT_AT_ONCE = 1000


class Ledger(Deployment):
    """Typed access to the ledger's scripts and keys."""

    def __init__(self, client: redis.Redis, *, prefix: str = "hq:", url: str = "") -> None:
        super().__init__(client, prefix=prefix, url=url)
        self._results = ResultSettings()
        self._retry = RetrySettings()

    # --- producers ------------------------------------------------------------------------

    def enqueue(
        self,
        run_id: str,
        jobs: Sequence[TrajectoryJob],
        *,
        config: Mapping[str, Any] | None,
        part: RunPart = DEFAULT_PART,
    ) -> Accepted:
        """Claim `jobs` of one run; returns those that were not claimed before.

        The first `config` locks the run's configuration; None skips the comparison. The caller
        publishes their messages and then calls `published`. If it dies in between, a
        worker's mover publishes them after `PUBLISH_CLAIM_S`.

        Raises:
            ConfigurationError: the run was begun with another `config`, a group with another
                size or policy, or it is cancelled, or a job's ids do not fit; nothing was
                claimed.
            PayloadTooLarge: the same, because of the size of a job or of `config`.
        """
        sent = "" if config is None else json.dumps(dict(config), sort_keys=True)
        if len(sent) > CONFIG_MAX_BYTES:
            raise PayloadTooLarge(
                f"the configuration of run {run_id} has {len(sent)} bytes, the cap is "
                f"{CONFIG_MAX_BYTES}: shorten it"
            )
        rows = JobRows(jobs)
        try:
            answer = self.call(
                "enqueue",
                run_id=run_id,
                claim_s=PUBLISH_CLAIM_S,
                run_ttl_s=RUN_TTL_S,
                config=sent,
                finished_ttl_s=self._results.finished_ttl_s,
                team=part.team,
                weight=part.weight,
                max_running=part.max_running,
                bodies=rows.bodies,
                groups=list(rows.groups),
                jobs=rows.jobs,
            )
        except redis.ResponseError as error:
            refusal = explained_refusal(run_id, str(error), sent)
            if refusal is None:
                raise
            raise refusal from None
        return Accepted([jobs[place - 1] for place in answer.positions], answer.claim.decode())

    def published(self, trajectory_ids: Iterable[str], *, claim: str = "") -> None:
        """Confirm that the messages of these jobs are in the broker.

        `claim` is the one from `enqueue` or `due`.
        """
        ids = list(trajectory_ids)
        if ids:
            self.call("published", claim=claim, ids=ids)

    def reconcile(self, lane: str, *, age_s: float) -> list[str]:
        """Have waiting jobs of a lane queued again that nobody could take; see `reconcile.lua`.

        Jobs younger than `age_s` are left alone.
        """
        found = self.call("reconcile", lane=lane, age_s=age_s, most=RECONCILED_AT_ONCE)
        return [part.decode(errors="replace") for part in found]

    def recover(self, *, lease_s: float) -> Recovered:
        """Put jobs back that stand nowhere, a part of all with each call; see `recover.lua`."""
        answer = self.call("recover", lease_s=lease_s, every_s=RECOVER_S, most=RECOVERED_AT_ONCE)
        found = [name.decode(errors="replace") for name in answer.found]
        return Recovered(answer.removed.decode(errors="replace"), found, bool(answer.more))

    def run_status(self, run_id: str) -> RunStatus:
        """Counters of a run; all zero if it is unknown."""
        return RunStatus.of(self.hash_fields(f"run:{run_id}", *RUN_COUNTERS))

    def backlog(self) -> int:
        """Number of jobs of all lanes that wait for a worker, without those parked by a pause."""
        with explained(self.url), self.client.pipeline(transaction=False) as pipe:
            pipe.zcard(self.key("waiting"))
            pipe.zcard(self.key("delayed"))
            found = pipe.execute(raise_on_error=False)
            # A key of another type, which workers remove, has no jobs.
            if other := next((each for each in found if _is_no_wrong_type(each)), None):
                raise other
        return sum(each for each in found if isinstance(each, int))

    # --- workers --------------------------------------------------------------------------

    def begin(
        self,
        trajectory_id: str,
        attempt: int,
        *,
        owner: str,
        lease_s: float,
        nonce: str,
        lanes: Sequence[str] = (),
        slot: int = 0,
        ready: str = "",
    ) -> Begun:
        """Make one `transitions.begin`."""
        return self.make(
            transitions.begin(
                trajectory_id,
                attempt,
                owner=owner,
                lease_s=lease_s,
                nonce=nonce,
                results=self._results,
                lanes=lanes,
                slot=slot,
                ready=ready,
            )
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
        continued: bool = False,
    ) -> bool:
        """Make one `transitions.requeue`."""
        return self.make(
            transitions.requeue(
                claim,
                owner=owner,
                used_s=used_s,
                delay_s=delay_s,
                failed_attempt=failed_attempt,
                spent=spent,
                continued=continued,
                retry=self._retry,
            )
        )

    def due(self, *, limit: int = 500) -> tuple[str, list[DueJob]]:
        """Claim delayed jobs that are due: (claim for `published`, jobs).

        Jobs that waited for a trainer are due with the next call, as far as it has come.
        """
        answer = self.call("due", claim_s=MOVE_CLAIM_S, most=limit)
        self._report_bad("delayed", answer.bad)
        for run_id in answer.paced:
            name = run_id.decode(errors="replace")
            try:
                if name.startswith(BUDGET_MARK):
                    budget = name.removeprefix(BUDGET_MARK)
                    self.call("budget_release", name=budget, most=limit)
                else:
                    self.call("run_release", run_id=name, most=limit, look_s=PACE_LOOK_S)
            except redis.ResponseError as error:  # else it would hold back all other runs
                extra = {"action": "bad_entries"}
                logger.warning("jobs of run %r stay set aside: %s", name, error, extra=extra)
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
        self,
        record: ScoredTrajectory,
        body: bytes,
        *,
        owner: str,
        finished_ttl_s: int,
        confirm: Confirmation | None = None,
        from_disk: bool = False,
    ) -> PublishVerdict:
        """Make one `transitions.publish`, confirmed by replicas if that is asked for.

        Raises:
            RedisFull: too many results wait for readers (`ResultSettings`), or Redis has no
                room; nothing was published.
            RedisUnavailable: it may be published.
        """
        return self.make(
            transitions.publish(
                record,
                body,
                owner=owner,
                finished_ttl_s=finished_ttl_s,
                results=self._results,
                from_disk=from_disk,
            ).confirmed(confirm)
        )


def _is_no_wrong_type(answer: Any) -> bool:
    return isinstance(answer, Exception) and "WRONGTYPE" not in str(answer)
