"""What becomes a measured record: work of an agent that had a turn, and a valid verdict.

An environment is foreign code, and its report may repeat what an agent has written.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.base import Environment, Verdict
from hermes_queue.agent.kinds.recorded import KIND
from hermes_queue.errors import (
    DeadlineExceeded,
    EnvBug,
    ModelConfigError,
    TrajectoryFailure,
    printable,
)
from hermes_queue.wire.parameters import INTEGER_MAX, INTEGER_MIN
from workers.draft import Draft

REPORT_MAX_DEPTH = 64
"""Maximum nesting of lists and mappings."""
REPORT_MAX_VALUES = 1_000_000
"""Texts, numbers, lists and mappings together; the cap of a record bounds their size."""
_SMALL_REPORT = 500
"""Values of a report that is checked on the event loop: less work than a trip to a thread."""


class _TooManyValues(Exception):
    """The report has more values than may be looked at."""


def require_turn(draft: Draft) -> None:
    """Refuse to measure an agent that never had a turn: it has shown nothing.

    A regrade has none of its own. Its work is that of a record which was measured.

    Raises:
        DeadlineExceeded: its time was up before; with `stage` set, like the next one.
        ModelConfigError: the model's server refused the first request, or the job's limits allow
            none; has the server's words.
    """
    agent = draft.agent
    if agent.turns or draft.job.agent.kind == KIND:
        return
    said = [str(each["message"]) for each in agent.events if each["event"] == "context_length"]
    why = f"the agent ended without a single turn of the model ({agent.stop_reason})"
    failure: TrajectoryFailure
    if agent.stop_reason == "time_limit":
        failure = DeadlineExceeded(why)
    elif said:
        failure = ModelConfigError(
            f"{why}: its first request is too long for the model: {said[-1]}; lower --sampling "
            "max_tokens, shorten the prompt, or serve the model with a longer context"
        )
    else:
        failure = ModelConfigError(why)
    failure.stage = "agent"
    raise failure


def checked_version(env: Environment[Any], name: str) -> str:
    """Return the environment's version.

    Raises:
        EnvBug: it is not text; the message names the fix.
    """
    version: object = env.version
    if not isinstance(version, str):
        raise EnvBug(f'env {name}: version must be text, e.g. "{version}", not {version!r:.100}')
    return printable(version)


async def check(verdict: Verdict, env: Environment[Any]) -> Verdict:
    """As `checked_verdict`, without holding up the event loop if the report is large."""
    try:
        return _plain(verdict, env, _SMALL_REPORT)
    except _TooManyValues:
        return await asyncio.to_thread(checked_verdict, verdict, env)


def checked_verdict(verdict: Verdict, env: Environment[Any]) -> Verdict:
    """Return the verdict in plain JSON values, which the environment can no longer change.

    Text that UTF-8 cannot carry is escaped.

    Raises:
        EnvBug: it is not a verdict, or a record cannot hold it; the message names the place and
            the fix.
    """
    try:
        return _plain(verdict, env, REPORT_MAX_VALUES)
    except _TooManyValues:
        raise EnvBug(
            f"Verdict.report has more than {REPORT_MAX_VALUES} values: sum them up, or cut them"
        ) from None


def _plain(verdict: Verdict, env: Environment[Any], values_most: int) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise EnvBug(f"verify() must return a Verdict, not {type(verdict).__name__}")
    rewards, report = verdict.rewards, verdict.report
    for name, value in (("rewards", rewards), ("report", report)):
        if not isinstance(value, Mapping):
            raise EnvBug(f"Verdict.{name} must be a mapping, not {type(value).__name__}")
    return Verdict(
        score=_score(verdict.score, env),
        rewards={
            _key(name, "Verdict.rewards"): _number(value, f"Verdict.rewards[{name!r:.100}]")
            for name, value in rewards.items()
        },
        report=_Plain(values_most).mapping(report, "Verdict.report", REPORT_MAX_DEPTH),
        trainable=verdict.trainable is not False,
    )


def _score(score: object, env: Environment[Any]) -> float | None:
    if getattr(env, "unscored", False) is not True:
        return _number(score, "Verdict.score")
    if score is not None:
        raise EnvBug(
            f"env {env.name} is declared `unscored`: its verdicts must have the score None"
        )
    return None


@dataclass(slots=True)
class _Plain:
    """Converts a report to plain values."""

    left: int

    def of(self, value: Any, place: str, depth: int) -> Any:
        """Return `value` in plain form; lists and mappings may nest at most `depth` deep."""
        self.left -= 1
        if self.left < 0:
            raise _TooManyValues
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, int):
            if not INTEGER_MIN <= value <= INTEGER_MAX:
                raise EnvBug(f"{place} is an integer of more than 64 bits: give it as text")
            return int(value)
        if isinstance(value, float):
            return float(value)
        return self._nested(value, place, depth)

    def _nested(self, value: Any, place: str, depth: int) -> Any:
        if depth == 0:
            raise EnvBug(
                f"Verdict.report is nested deeper than {REPORT_MAX_DEPTH}: cut it, or give what "
                "is below as text"
            )
        if isinstance(value, Mapping):
            return self.mapping(value, place, depth)
        if isinstance(value, list | tuple):
            return [self.of(each, f"{place}[...]", depth - 1) for each in value]
        raise EnvBug(
            f"{place} is a {type(value).__name__}, which JSON does not have: give it as text, "
            "number, list or mapping"
        )

    def mapping(self, value: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
        """Return a mapping in plain form."""
        return {
            _key(name, place): self.of(each, f"{place[:200]}[{name!r:.100}]", depth - 1)
            for name, each in value.items()
        }


def _key(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise EnvBug(f"{place} has a key that is not text, {name!r:.100}: use str(key)")
    return printable(name)


def _number(value: object, place: str) -> float:
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]  # numpy's numbers are welcome
    except (TypeError, ValueError, OverflowError) as error:
        raise EnvBug(f"{place} must be a number, not a {type(value).__name__}") from error
    if not math.isfinite(number):
        raise EnvBug(f"{place} must be a finite number, not {number}")
    return number
