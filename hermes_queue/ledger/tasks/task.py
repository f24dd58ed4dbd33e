"""One remembered task: what `task:{env}:{sha256}` holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes_queue.models import AgentSpec

PASSES_FROM = 1.0
"""A score of at least this counts as a pass, here and in the accounts of goodput."""
SUM_MOST = 1e15
"""Larger sums are cut to this, as `include/tasks.lua` does."""
ID_CHARACTERS, NAME_CHARACTERS, POLICY_CHARACTERS = 120, 60, 30
_AT_ONCE = 64
"""Rows of a list that are read at most; scripts store fewer."""
_SCRIPTS = frozenset({"oracle", "nop", "replay", "garbage", "tamper", "slow", "recorded", "human"})
"""Agents that say nothing about what a model can do."""


class Solver(NamedTuple):
    """Who worked on a task."""

    model: str
    """The model's name; `agent:KIND` of an agent without one."""
    policy: str = ""
    """Version of the policy, "" = unknown."""

    @property
    def is_model(self) -> bool:
        """Whether its scores say how hard the task is for a model."""
        return not self.model.startswith("agent:")


def solver_of(agent: AgentSpec, policy_version: str | int | None = None) -> Solver:
    """The solver of a job with this agent."""
    if agent.kind in _SCRIPTS or not agent.model:
        name = f"agent:{agent.kind}"
    else:
        name = agent.model
    policy = "" if policy_version is None else str(policy_version)
    return Solver(name[:NAME_CHARACTERS], policy[:POLICY_CHARACTERS])


def member_of(env: str, item_sha256: str) -> str:
    """The task's name in the index, which ends its key, too."""
    return f"{env}:{item_sha256}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and deviation of some values."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    """Sum of the squares."""

    @property
    def mean(self) -> float | None:
        """None without values."""
        return self.total / self.count if self.count else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the population; None without values."""
        if not self.count:
            return None
        mean = self.total / self.count
        return math.sqrt(max(0.0, self.squares / self.count - mean * mean))


@dataclass(frozen=True, slots=True)
class PassRate:
    """Scores of some solvers together."""

    scored: int = 0
    passes: int = 0
    score_sum: float = 0.0

    @property
    def pass_rate(self) -> float | None:
        """None without scores."""
        return min(1.0, self.passes / self.scored) if self.scored else None


def band_of(text: str) -> tuple[float, float]:
    """The bounds of a band of pass rates, `LOW-HIGH`.

    Raises:
        ValueError: they are no rates, or not in this order.
    """
    low, _, high = text.partition("-")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = 1.0, 0.0
    if not 0 <= bounds[0] <= bounds[1] <= 1:
        raise ValueError(f"{text!r} is not LOW-HIGH; write e.g. 0.1-0.9, or 0-0")
    return bounds


@dataclass(frozen=True, slots=True)
class SolverStats:
    """One model and policy version, or an agent without a model."""

    solver: Solver
    rate: PassRate
    seconds: Spread
    """Without `squares`."""
    last_seen: float


@dataclass(frozen=True, slots=True)
class TaskCause:
    """Attempts that failed of one cause in one stage."""

    cause: str
    stage: str
    times: int
    at: float
    """Of the last one, Unix seconds."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is known of one task. Times are Unix seconds of Redis' clock."""

    env: str
    item_sha256: str
    instance_id: str = ""
    """For people; it may be cut."""
    env_version: str = ""
    """The last one."""
    first_seen: float = 0.0
    last_seen: float = 0.0
    attempts: int = 0
    """Of all agents, with those that failed."""
    rate: PassRate = PassRate()
    """Of agents with a model; others are in `solvers` alone."""
    seconds: Spread = Spread()
    """Active seconds of a measured trajectory: without the wait in the queue and for a slot. Of
    agents with a model."""
    cost_usd: float = 0.0
    priced: int = 0
    """Trajectories whose cost is known."""
    tokens: int = 0
    regraded: int = 0
    """Times that the same answer was graded again with the same row and version of the env."""
    flips: int = 0
    """Of these, with another score."""
    deaths: int = 0
    """Workers that died under jobs that ended as poison."""
    causes: tuple[TaskCause, ...] = ()
    """Newest first."""
    solvers: tuple[SolverStats, ...] = ()
    """Newest first."""

    @property
    def flake_rate(self) -> float | None:
        """Part of the gradings of the same answer that gave another score; None without any."""
        return min(1.0, self.flips / self.regraded) if self.regraded else None

    def rate_of(self, model: str | None = None, policies: int | None = None) -> PassRate:
        """Scores of one model (or `agent:KIND`) in its `policies` newest versions that are kept.

        None: of all models, of all versions.
        """
        if model is None and policies is None:
            return self.rate
        own = [s for s in self.solvers if (s.solver.model == model if model else s.solver.is_model)]
        rates = [each.rate for each in own[:policies]]
        return PassRate(
            sum(each.scored for each in rates),
            sum(each.passes for each in rates),
            sum(each.score_sum for each in rates),
        )

    def seconds_of(self, model: str | None = None) -> float | None:
        """Mean active seconds with one model (or `agent:KIND`); of all models if it is unknown."""
        own = [each.seconds for each in self.solvers if each.solver.model == model]
        known = Spread(sum(each.count for each in own), sum(each.total for each in own))
        return self.seconds.mean if known.mean is None else known.mean

    @classmethod
    def read(cls, env: str, item_sha256: str, raw: bytes) -> Task | None:
        """What Redis has of a task; None if that cannot be read."""
        try:
            fields = json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict):
            return None
        return cls(
            env=env,
            item_sha256=item_sha256,
            instance_id=_text(fields, "id"),
            env_version=_text(fields, "version"),
            first_seen=_number(fields, "first"),
            last_seen=_number(fields, "last"),
            attempts=_count(fields, "attempts"),
            rate=_rate(fields),
            seconds=_spread(fields),
            cost_usd=_number(fields, "usd"),
            priced=_count(fields, "priced"),
            tokens=_count(fields, "tokens"),
            regraded=_count(fields, "regraded"),
            flips=_count(fields, "flips"),
            deaths=_count(fields, "deaths"),
            causes=tuple(
                TaskCause(
                    _text(row, "cause"), _text(row, "stage"), _count(row, "times"), _at(row, fields)
                )
                for row in _rows(fields, "causes")
            ),
            solvers=tuple(
                SolverStats(
                    Solver(_text(row, "model"), _text(row, "policy")),
                    _rate(row),
                    _spread(row),
                    _at(row, fields),
                )
                for row in _rows(fields, "solvers")
            ),
        )

    def fields(self) -> dict[str, Any]:
        """As Redis has it: a sum of 0 is left out."""
        sums = {
            "id": self.instance_id,
            "version": self.env_version,
            "first": self.first_seen,
            "last": self.last_seen,
            "attempts": self.attempts,
            **_rate_fields(self.rate),
            **_spread_fields(self.seconds),
            "usd": self.cost_usd,
            "priced": self.priced,
            "tokens": self.tokens,
            "regraded": self.regraded,
            "flips": self.flips,
            "deaths": self.deaths,
        }
        causes = [
            {"cause": each.cause, "stage": each.stage, "times": each.times, "last": each.at}
            for each in self.causes
        ]
        solvers = [
            {
                **each.solver._asdict(),
                **_rate_fields(each.rate),
                **_spread_fields(each.seconds),
                "last": each.last_seen,
            }
            for each in self.solvers
        ]
        known = sums | {"causes": causes, "solvers": solvers}
        return {name: value for name, value in known.items() if value}


def bounded(value: object) -> float:
    """A finite number between +-`SUM_MOST`; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0.0
    return float(max(-SUM_MOST, min(value, SUM_MOST)))


def _number(fields: dict[str, Any], name: str) -> float:
    return bounded(fields.get(name))


def _count(fields: dict[str, Any], name: str) -> int:
    return max(0, int(bounded(fields.get(name))))


def _at(row: dict[str, Any], fields: dict[str, Any]) -> float:
    """A row that says no time is as old as its task."""
    return _number(row, "last") or _number(fields, "last")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value[:ID_CHARACTERS] if isinstance(value, str) else ""


def _rows(fields: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    rows = fields.get(name)
    return (
        (row for row in rows[:_AT_ONCE] if isinstance(row, dict))
        if isinstance(rows, list)
        else iter(())
    )


def _rate(fields: dict[str, Any]) -> PassRate:
    return PassRate(_count(fields, "scored"), _count(fields, "passes"), _number(fields, "score"))


def _spread(fields: dict[str, Any]) -> Spread:
    return Spread(_count(fields, "timed"), _number(fields, "seconds"), _number(fields, "squares"))


def _rate_fields(rate: PassRate) -> dict[str, float]:
    return {"scored": rate.scored, "passes": rate.passes, "score": rate.score_sum}


def _spread_fields(spread: Spread) -> dict[str, float]:
    return {"timed": spread.count, "seconds": spread.total, "squares": spread.squares}
