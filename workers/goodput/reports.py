"""Accounts of the leases that have ended in this process, until the keeper reports them.

Each second of a lease has exactly one account. Turns of a record whose tokens drifted are counted,
too: what is trained on them would not be what was sampled.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from hermes_queue.agent.tokens.merge import BreakReason, is_delivered, parents
from hermes_queue.ledger import ACCEPTED, Ledger, PublishVerdict
from hermes_queue.ledger.accounts.fields import DRIFTED, MEASURED, RESERIALISED, TURNS, WORK
from hermes_queue.ledger.accounts.goodput import add_report
from hermes_queue.ledger.tasks.task import PASSES_FROM, bounded
from hermes_queue.models import AttemptRecord, ScoredTrajectory
from workers.draft import Draft

_RUNS_AT_ONCE = 50
_SLOW_MOST = 50
"""Longest trajectories of a run in one report."""

Rows = dict[str, list[tuple[Any, ...]]]

_SETUP = ("load", "prepare", "acquire", "setup")
_WAIT = "_wait"
"""End of the names of waits for the place of a stage."""
_BEFORE = "queue"
"""The stage that is no part of a lease."""

_REASONS = frozenset(get_args(BreakReason))
_UNEXPECTED = frozenset({"reply", "earlier_turns"})
"""Reasons of a `sequence_break` if neither we, the agent nor a limit has changed anything."""


@dataclass(slots=True)
class _OfRun:
    """Sums over the leases of one run that have ended since the last report."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    moments: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    slow: list[tuple[float, str]] = field(default_factory=list)


class SlotReports:
    """The account of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._reporting = threading.Lock(), threading.Lock()
        self._runs: dict[str, _OfRun] = {}
        self._pending: Rows | None = None
        """A report that may or may not have been counted: it is repeated under its number."""
        self._number = 0

    def published(self, draft: Draft, record: ScoredTrajectory, verdict: PublishVerdict) -> None:
        """Account for a lease that ended with the publication of a record; once per lease."""
        outcome = _outcome(draft, record, verdict)
        if outcome is None or draft.is_accounted:
            return
        drift = drift_in(record) if outcome == MEASURED else Counter[str]()
        with self._lock:
            run, lease_s = self._ended(draft, outcome)
            if verdict not in ACCEPTED:
                return
            run.moments["ended"] += 1
            name = f"{draft.job.instance_id[:200]} {record.trajectory_id}"
            run.slow.append((round(lease_s, 3), name))
            if len(run.slow) >= 2 * _SLOW_MOST:
                run.slow = sorted(run.slow)[-_SLOW_MOST:]
            if record.status == "failed":
                run.moments["failed"] += 1
            elif record.score is None:
                run.counts["c|unscored"] += 1
            else:
                _count_score(run, record.score)
            for name, count in drift.items():
                run.counts[f"k|{name}"] += count

    def given_back(self, draft: Draft | None, failed: AttemptRecord | None) -> None:
        """Account for a lease that ended with its job handed back, `failed` or unchanged."""
        if draft is not None and not draft.is_accounted:
            with self._lock:
                self._ended(draft, f"retry:{failed.failure.cause}" if failed else "handed_over")

    def handed(self, draft: Draft) -> None:
        """Account for a lease that ended with a hand-over to a grader, which counts the attempt."""
        if not draft.is_accounted:
            with self._lock:
                self._ended(draft, MEASURED, attempts=0)

    def _ended(self, draft: Draft, outcome: str, *, attempts: int = 1) -> tuple[_OfRun, float]:
        draft.is_accounted = True
        lease_s = time.monotonic() - draft.leased_at
        run = self._runs.setdefault(draft.job.run_id, _OfRun())
        seconds = divided(draft, lease_s) if outcome == MEASURED else {outcome: lease_s}
        for account, some_s in seconds.items():
            run.counts[f"s|{account}"] += some_s
        spent, slot_usd = draft.spent, draft.rent.usd
        known_usd = 0.0 if spent.cost_usd is None else max(0.0, spent.cost_usd - slot_usd)
        amounts = {"n": attempts, "tok": spent.tokens, "usd": known_usd, "box": slot_usd}
        for kind, amount in amounts.items():
            if amount:
                run.counts[f"{kind}|{outcome}"] += amount
        course = {"slot_s": lease_s, "tokens": spent.tokens, "usd": known_usd + slot_usd}
        for name, value in course.items():
            if value:
                run.moments[name] += value
        return run, lease_s

    def report(self, ledger: Ledger, owner: str) -> None:
        """Report everything.

        Raises:
            RedisUnavailable, RedisFull: call it again; nothing is counted twice.
        """
        with self._reporting:
            while self._pending or self._runs:
                if self._pending is None:
                    self._pending = self._take()
                    self._number += 1
                add_report(ledger, owner, self._number, **self._pending)
                self._pending = None

    def _take(self) -> Rows:
        rows: Rows = {"counts": [], "moments": [], "slow": []}
        with self._lock:
            for run_id in list(self._runs)[:_RUNS_AT_ONCE]:
                run = self._runs.pop(run_id)
                for kind in ("counts", "moments"):
                    sums = getattr(run, kind).items()
                    rows[kind] += [(run_id, name, round(bounded(value), 6)) for name, value in sums]
                rows["slow"] += [(run_id, name, s) for s, name in sorted(run.slow)[-_SLOW_MOST:]]
        return rows


def _outcome(draft: Draft, record: ScoredTrajectory, verdict: PublishVerdict) -> str | None:
    """What the attempt was; None if its lease was another's by then, or its answer was lost."""
    if verdict in ("surplus", "cancelled"):
        return verdict
    if verdict not in ACCEPTED:
        return None
    failure = record.failure
    if failure is None:
        return MEASURED
    if failure.cause == "cancelled":
        return "cancelled"
    refills = failure.refillable and draft.job.group_policy.max_refills > 0
    return "refill" if refills else f"failed:{failure.cause}"


def _count_score(run: _OfRun, score: float) -> None:
    run.counts["c|scored"] += 1
    run.counts["c|score"] += score
    run.counts[f"h|{min(10, max(0, int(10 * score + 1e-9)))}"] += 1
    run.moments["scored"] += 1
    run.moments["score"] += score
    if score >= PASSES_FROM:
        run.counts["c|passed"] += 1
        run.moments["passed"] += 1


def divided(draft: Draft, lease_s: float) -> dict[str, float]:
    """The seconds of a measured attempt by account, of `WORK`; they sum up to `lease_s`.

    Calls of a program may overlap, and so may their waits: what they take together is at most the
    time of the agent.
    """
    stages = draft.clock.stage_seconds
    agent, left_s = draft.agent, max(0.0, lease_s)
    agent_s = stages.get("agent", 0.0)
    waiting_s = min(agent_s, max(0.0, agent.waited_s - draft.kept_waited_s))
    calls_s = sum(turn.latency_s for turn in agent.turns[draft.kept_turns :])
    model_s = min(agent_s - waiting_s, max(0.0, calls_s))
    wanted = {
        "setup": sum(stages.get(name, 0.0) for name in _SETUP),
        "waiting": waiting_s + sum(s for name, s in stages.items() if name.endswith(_WAIT)),
        "model": model_s,
        "tools": agent_s - waiting_s - model_s,
        "verify": _others(stages),
    }
    found = {}
    for name in WORK[:-1]:
        found[name] = min(left_s, max(0.0, wanted[name]))
        left_s -= found[name]
    return {**found, WORK[-1]: left_s}


def _others(stages: Mapping[str, float]) -> float:
    known = {*_SETUP, _BEFORE, "agent"}
    return sum(s for name, s in stages.items() if name not in known and not name.endswith(_WAIT))


def drift_in(record: ScoredTrajectory) -> Counter[str]:
    """Turns that continue another one, breaks by reason, and unexpected ones; empty without ids.

    A program that gets messages writes the arguments of its calls anew, with other blanks or in
    another order. That is its right and no drift of ours: such breaks are `RESERIALISED`.
    """
    if record.sequences is None:
        return Counter()
    above = parents(record.turns)
    found = Counter(
        {
            TURNS: sum(
                p is not None and is_delivered(t) for p, t in zip(above, record.turns, strict=True)
            )
        }
    )
    if not found[TURNS]:
        return Counter()
    for event in record.events:
        if event.get("event") == "sequence_break":
            reason = _reason(record, event.get("turn"), str(event.get("reason")), above)
            found[reason] += 1
            found[DRIFTED] += reason in _UNEXPECTED
    return found


def _reason(record: ScoredTrajectory, turn: object, reason: str, above: list[int | None]) -> str:
    """The reason; `RESERIALISED` if a program has written the arguments of calls anew."""
    if reason not in _REASONS:
        return "unknown"
    is_program = record.program is not None and record.agent.params.get("mode") != "tokens"
    if reason != "reply" or not is_program:
        return reason
    parent = above[turn] if isinstance(turn, int) and 0 <= turn < len(above) else None
    called = parent is not None and record.turns[parent].finish_reason == "tool_calls"
    return RESERIALISED if called else reason
