"""Runs for operators: list, pause, resume, cancel, purge."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained, explanation
from hermes_queue.ledger.answers import DEFAULT_PART, ENDED, RUN_COUNTERS, RunPart, RunStatus
from hermes_queue.ledger.budgets import ACCOUNT_FIELDS, Budget, accounts, accounts_of
from hermes_queue.ledger.fleet import pacing
from hermes_queue.ledger.fleet.pacing import RunPace
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger
from hermes_queue.settings import ResultSettings
from hermes_queue.wire.ids import group_of

logger = logging.getLogger(__name__)

_OF_PART = ("team", "weight", "max_running")
_FIELDS = ("state", "reason", "config", "paused_by", "policy_version", *_OF_PART)
_OPTIONS = {"cost_usd": "cost", "tokens": "tokens", "slot_s": "slot-hours", "wall_s": "wall"}
"""By budget: the option of `hermes-queue run budget`."""
RUNS_AT_ONCE = 500
"""Runs that are read in one round trip."""
BATCH = 500
"""Jobs or claims per call: takes a few milliseconds of Redis."""
GROUPS_AT_ONCE = 32
"""Groups per call; each has up to thousands of samples."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Why no job of a run begins."""

    by: str
    """operator, budget, or the cause of a failure."""
    reason: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run; `state` is active, paused, cancelled or done."""

    run_id: str
    state: str
    reason: str
    """Why it was paused or cancelled."""
    paused_by: str
    """As `Pause.by`; "" = not paused."""
    created: float
    """Unix seconds of Redis' clock."""
    config: dict[str, Any]
    """Configuration that every producer of this run id must send."""
    parked: int
    """Waiting jobs that the pause has set aside; part of `counters.queued`."""
    accounts: dict[str, Budget]
    """Budgets and spending, by the names of `BUDGETS`."""
    policy_version: int | None
    """Version that its endpoints serve, as reported by its trainer."""
    pace: RunPace | None
    """How far it is ahead of its trainer; None if that does not hold it back."""
    counters: RunStatus
    part: RunPart = DEFAULT_PART
    """What it was enqueued with for its part of the slots."""


class Runs:
    """The runs of one deployment."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def ids(self) -> list[str]:
        """Known runs, the one with the latest enqueue first."""
        with explained(self.ledger.url):
            found: Any = self.ledger.client.zrevrange(self.ledger.key("runs"), 0, -1)
        return [run_id.decode(errors="replace") for run_id in found]

    def get(self, run_id: str) -> RunInfo:
        """Facts about a run.

        Raises:
            ConfigurationError: the run is unknown.
        """
        [found] = self._read([run_id])
        if isinstance(found, Exception):
            raise found
        return found

    def several(self, run_ids: Sequence[str]) -> list[RunInfo]:
        """Facts about these runs, in order and in few round trips.

        Runs that are unknown by now are left out, and so, with a warning, are those that cannot
        be read.
        """
        infos = []
        for start in range(0, len(run_ids), RUNS_AT_ONCE):
            some = run_ids[start : start + RUNS_AT_ONCE]
            for run_id, found in zip(some, self._read(some), strict=True):
                if isinstance(found, RunInfo):
                    infos.append(found)
                elif not isinstance(found, ConfigurationError):
                    extra = {"action": "bad_entries"}
                    logger.warning("run %r cannot be read: %s", run_id, found, extra=extra)
        return infos

    def _read(self, run_ids: Sequence[str]) -> list[RunInfo | Exception]:
        """Each run, or why there is none."""
        ledger, now = self.ledger, time.time()
        fields = (*_FIELDS, *ACCOUNT_FIELDS, *RUN_COUNTERS)
        with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hmget(ledger.key(f"run:{run_id}"), fields)
                pipe.scard(ledger.key(f"run:{run_id}:parked"))
                pacing.ask(pipe, ledger, run_id)
            answers: Any = iter(pipe.execute(raise_on_error=False))
        found: list[RunInfo | Exception] = []
        # Every run has as many answers: zip takes the next one of the same iterator for each.
        for run_id, *run in zip(run_ids, *[answers] * (2 + pacing.ANSWERS), strict=False):
            failed = next((each for each in run if isinstance(each, Exception)), None)
            try:
                found.append(
                    _run_info(run_id, run, now)
                    if failed is None
                    else explanation(ledger.url, failed)
                )
            except (ValueError, ConfigurationError) as error:
                found.append(error)
        return found

    def paused(self, run_id: str) -> Pause | None:
        """The pause of a run, None if there is none. One round trip."""
        names = ("state", "paused_by", "reason")
        state, by, reason = self.ledger.hash_fields(f"run:{run_id}", *names)
        return Pause(by, reason) if state == "paused" else None

    def pause(self, run_id: str, reason: str = "", *, by: str = "operator") -> None:
        """Begin no more jobs; running trajectories wait before their next turn. Idempotent.

        Raises:
            ConfigurationError: the run is unknown or cancelled.
        """
        self._enter(run_id, "paused", reason, by)

    def resume(self, run_id: str) -> int:
        """Resume a paused run; returns how many parked jobs were put back.

        May be repeated, also after a call that died half-way.

        Raises:
            ConfigurationError: the run is unknown, cancelled, or has spent a budget.
        """
        for account in accounts(self.ledger, run_id, now=time.time()).values():
            if account.exhausted:
                raise ConfigurationError(
                    f"run {run_id!r} has spent its budget: {account.name} {account.spent:g} of "
                    f"{account.limit:g}; raise it: hermes-queue run budget {run_id} "
                    f"--{_OPTIONS[account.name]} AMOUNT"
                )
        self._unpark(run_id, 0)  # refused before anything has changed, if it will be
        self._enter(run_id, "active", "")
        back: int = 0
        while True:
            answer = self._unpark(run_id, BATCH)
            back += answer.moved
            if not answer.left:
                return back

    def _unpark(self, run_id: str, most: int) -> Any:
        """See `run_unpark.lua`."""
        return self.ledger.call("run_unpark", run_id=run_id, most=most)

    def cancel(self, run_id: str, reason: str = "") -> int:
        """End a run for good; returns how many trajectories this call has cancelled.

        Running ones stop at their worker's next beat; nothing of them is published. May be
        repeated, also after a call that died half-way.

        Raises:
            ConfigurationError: the run is unknown.
        """
        self._close(run_id, ())  # refused before anything has changed, if it will be
        self._enter(run_id, "cancelled", reason)
        return self._close_groups(run_id)

    def _close_groups(self, run_id: str) -> int:
        """Cancel open trajectories of a cancelled run; returns their number."""
        return sum(max(0, self._close(run_id, groups)) for groups in self._groups(run_id))

    def _close(self, run_id: str, groups: Sequence[str]) -> int:
        """See `run_cancel.lua`."""
        ttl_s = ResultSettings().finished_ttl_s
        return int(
            self.ledger.call("run_cancel", run_id=run_id, finished_ttl_s=ttl_s, groups=groups)
        )

    def _groups(self, run_id: str) -> Iterator[list[str]]:
        """Ids of all groups of a run, in batches; an id may be repeated."""
        client: Any = self.ledger.client
        cursor = 0
        while True:
            with explained(self.ledger.url):
                cursor, claims = client.sscan(
                    self.ledger.key(f"run:{run_id}:claimed"), cursor, count=BATCH
                )
            found = sorted({group_of(f"{run_id}.{claim.decode()}") for claim in claims})
            for start in range(0, len(found), GROUPS_AT_ONCE):
                yield found[start : start + GROUPS_AT_ONCE]
            if not cursor:
                return

    def purge(self, run_id: str) -> None:
        """Forget a run that is done or cancelled. Its results stay.

        Groups that were enqueued only in part are closed without being published. If the run is
        enqueued again, it begins a new life under the same ids; records that a worker still
        keeps from the former life are ignored. May be repeated, also after a call that died
        half-way.

        Raises:
            ConfigurationError: the run is unknown, or some of its trajectories wait or run.
        """
        self._close(run_id, ())  # refused before anything has changed, if it will be
        open_jobs = self._purge(run_id, "close")
        if open_jobs < 0:
            raise _unknown(run_id)
        if open_jobs:
            raise ConfigurationError(
                f"run {run_id!r} has {open_jobs} waiting or running trajectories; cancel it first: "
                f"hermes-queue run cancel {run_id}"
            )
        self._close_groups(run_id)
        for groups in self._groups(run_id):
            self.ledger.call("run_erase", run_id=run_id, groups=groups)
        self._purge(run_id, "forget")

    def _purge(self, run_id: str, step: Literal["close", "forget"]) -> int:
        """See `run_purge.lua`."""
        return int(
            self.ledger.call(
                "run_purge", run_id=run_id, step=step, run_ttl_s=RUN_TTL_S, ended=ENDED
            )
        )

    def _enter(self, run_id: str, state: str, reason: str, by: str = "operator") -> None:
        answer = self.ledger.call("run_state", run_id=run_id, state=state, reason=reason, by=by)
        before = answer.decode()
        if before == "unknown":
            raise _unknown(run_id)
        if before == "cancelled" != state:
            raise ConfigurationError(
                f"run {run_id!r} is cancelled and cannot be changed; choose a new run id"
            )


def _run_info(run_id: str, answers: Sequence[Any], now: float) -> RunInfo:
    """Raises ConfigurationError: there is no such run; ValueError: it cannot be read."""
    raw, parked, *pace = answers
    values = [value.decode() if value else "" for value in raw]
    state, reason, config, by, version, team, weight, most = values[: len(_FIELDS)]
    money, counts = values[len(_FIELDS) : -len(RUN_COUNTERS)], values[-len(RUN_COUNTERS) :]
    if not state:
        raise _unknown(run_id)
    counters = RunStatus.of(counts)
    if counters.done and state != "cancelled":
        state = "done"
    return RunInfo(
        run_id=run_id,
        state=state,
        reason=reason,
        paused_by=by if state == "paused" else "",
        created=float(money[ACCOUNT_FIELDS.index("created")]),
        config=json.loads(config or "{}"),
        parked=parked,
        accounts=accounts_of(money, now=now),
        policy_version=int(version) if version else None,
        pace=pacing.read(pace),
        counters=counters,
        part=RunPart(team, float(weight) if weight else None, int(most) if most else None),
    )


def _unknown(run_id: str) -> ConfigurationError:
    return ConfigurationError(f"run {run_id!r} is unknown in this Redis")
