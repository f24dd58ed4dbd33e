"""What finished trajectories say of their tasks, until it is added to the memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hermes_queue.ledger.tasks.task import (
    ID_CHARACTERS,
    NAME_CHARACTERS,
    PASSES_FROM,
    POLICY_CHARACTERS,
    SUM_MOST,
    Solver,
    member_of,
    solver_of,
)
from hermes_queue.models import ScoredTrajectory

UNKNOWN = Solver("unknown")
WAITING_MOST = 5000
"""Tasks of which something waits to be added; what comes while Redis is away is not counted."""
_WAITS = ("queue", "acquire")
"""Stages in which a trajectory waits for a slot; what ends in `_wait` is a wait for a place."""
_CAUSES_MOST = 8
_ROWS_MOST = {"causes": 5, "solvers": 6}
"""As in `include/tasks.lua`."""


class Observation(NamedTuple):
    """One trajectory that has ended."""

    env: str
    item_sha256: str
    instance_id: str = ""
    env_version: str = ""
    solver: Solver = UNKNOWN
    attempts: int = 1
    score: float | None = None
    seconds: float | None = None
    """Active seconds; None if it was not measured."""
    cost_usd: float | None = None
    tokens: int = 0
    causes: tuple[tuple[str, str], ...] = ()
    """Cause and stage of each attempt that failed."""
    regraded: bool | None = None
    """Whether the same answer has another score now; None if nothing was graded again."""

    @classmethod
    def of(cls, record: ScoredTrajectory) -> Observation:
        """What a record says."""
        failures = [each.failure for each in record.attempts]
        failures += [record.failure] if record.failure else []
        stages, usage, facts = record.stage_seconds, record.usage, record.provenance
        # What a regrade measures is the work of another record, which has been counted.
        measured = record.status != "failed" and record.regraded is None
        return cls(
            env=record.env,
            item_sha256=facts.item_sha256,
            instance_id=record.instance_id,
            env_version=facts.env_version,
            solver=solver_of(record.agent, record.policy_newest or record.policy_version),
            attempts=len(record.attempts) + 1,
            score=record.score if measured else None,
            seconds=sum(_active(stages)) if measured else None,
            cost_usd=record.cost_usd,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            causes=tuple((each.kind, each.stage) for each in failures),
            regraded=flipped(record),
        )


def _active(stages: Mapping[str, float]) -> Iterator[float]:
    return (s for name, s in stages.items() if name not in _WAITS and not name.endswith("_wait"))


def flipped(record: ScoredTrajectory) -> bool | None:
    """Whether a regrade with the same row and version of the env gave another score; else None."""
    before, facts = record.regraded, record.provenance
    if before is None or record.score is None:
        return None
    of_old = (before.item_sha256, before.env_version)
    return (
        before.score != record.score if of_old == (facts.item_sha256, facts.env_version) else None
    )


class Observations:
    """Sums by task. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._dropped = 0

    def note(self, seen: Observation) -> None:
        """Count a trajectory; while too much waits, it is only counted as dropped."""
        member = member_of(seen.env, seen.item_sha256)
        with self._lock:
            sums = self._waiting.get(member)
            if sums is None:
                if not seen.item_sha256 or len(self._waiting) >= WAITING_MOST:
                    self._dropped += 1
                    return
                sums = self._waiting[member] = {}
            _add(sums, seen)

    def take(self, most: int) -> dict[str, dict[str, Any]]:
        """Take up to `most` tasks out: sums by the task's name in the index."""
        with self._lock:
            members = list(self._waiting)[:most]
            return {member: self._waiting.pop(member) for member in members}

    def put_back(self, taken: dict[str, dict[str, Any]]) -> None:
        """Keep sums whose report failed, as far as nothing new was counted for their tasks."""
        with self._lock:
            for member, sums in taken.items():
                if member in self._waiting or len(self._waiting) >= WAITING_MOST:
                    self._dropped += 1
                else:
                    self._waiting[member] = sums

    def dropped(self) -> int:
        """How many were not counted since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped


def sums_by_task(seen: Iterable[Observation]) -> dict[str, dict[str, Any]]:
    """Sums by the task's name in the index."""
    waiting: dict[str, dict[str, Any]] = {}
    for each in seen:
        _add(waiting.setdefault(member_of(each.env, each.item_sha256), {}), each)
    return waiting


def encoded(sums: dict[str, Any]) -> str:
    """Sums as `tasks_add.lua` takes them."""
    packed = dict(sums)
    for name, most in _ROWS_MOST.items():
        if rows := packed.get(name):
            packed[name] = list(rows.values())[-most:]
    return json.dumps(packed, allow_nan=False)


def _add(sums: dict[str, Any], seen: Observation) -> None:
    sums["id"] = seen.instance_id[:ID_CHARACTERS]
    if seen.env_version:
        sums["version"] = seen.env_version[:ID_CHARACTERS]
    _plus(sums, "attempts", seen.attempts)
    _plus(sums, "tokens", seen.tokens)
    if seen.cost_usd is not None and seen.solver.is_model:
        _plus(sums, "priced", 1)
        _plus(sums, "usd", seen.cost_usd)
    if seen.regraded is not None:
        _plus(sums, "regraded", 1)
        _plus(sums, "flips", int(seen.regraded))
    if seen.causes:
        failed = sums.setdefault("causes", {})
        for cause, stage in seen.causes[-_CAUSES_MOST:]:
            cause, stage = cause[:NAME_CHARACTERS], stage[:NAME_CHARACTERS]
            row = failed.setdefault((cause, stage), {"cause": cause, "stage": stage})
            _plus(row, "times", 1)
    if seen.score is not None or seen.seconds is not None:
        model, policy = seen.solver
        named = {"model": model[:NAME_CHARACTERS], "policy": policy[:POLICY_CHARACTERS]}
        row = sums.setdefault("solvers", {}).setdefault(seen.solver, named)
        seconds = _measure(row, seen)
        if seen.solver.is_model:
            _measure(sums, seen)
            _plus(sums, "squares", round(seconds * seconds, 3))


def _measure(sums: dict[str, Any], seen: Observation) -> float:
    """Count score and seconds; returns the latter, 0 if there are none."""
    if seen.score is not None:
        _plus(sums, "scored", 1)
        _plus(sums, "passes", int(seen.score >= PASSES_FROM))
        _plus(sums, "score", seen.score)
    if seen.seconds is not None and 0 <= seen.seconds <= SUM_MOST:
        seconds = round(seen.seconds, 3)
        _plus(sums, "timed", 1)
        _plus(sums, "seconds", seconds)
        return seconds
    return 0.0


def _plus(sums: dict[str, Any], name: str, by: float) -> None:
    if by and -SUM_MOST <= by <= SUM_MOST:  # neither NaN nor anything that no trajectory has
        sums[name] = sums.get(name, 0) + by
