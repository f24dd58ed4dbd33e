"""A few facts of a record as small JSON, for the entry of its group in the results stream.

So an index of trajectories needs no bodies. A summary may lack any key, and may be missing
altogether: records of older workers have none, and what would be too large is left out. Names of
keys never change their meaning; further ones may come.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from hermes_queue.models import ScoredTrajectory

logger = logging.getLogger(__name__)

SUMMARY_BYTES_MAX = 1000
"""Bytes of one summary. The script that publishes has a bound of its own for all of a group."""
TEXT_CHARACTERS = 80
"""Characters of each text in it."""
FLAGS_MOST = 6
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def summary_of(record: ScoredTrajectory) -> str:
    """The summary of a record, at most `SUMMARY_BYTES_MAX` bytes of ASCII; "" if it has none.

    What is zero, empty or unknown is left out.
    """
    try:
        facts = _facts(record) | _times(record) | _of_report(record.report)
        known = {name: value for name, value in facts.items() if value or name == "score"}
        if record.score is None:
            del known["score"]
        # The most important ones come first, so the last ones go.
        while known:
            text = _encode(known)
            if len(text) <= SUMMARY_BYTES_MAX:
                return text
            known.popitem()
    except (ValueError, TypeError, OverflowError) as error:  # a record counts without it, too
        name, extra = record.trajectory_id, {"action": "bug"}
        logger.error("%s has no summary: %s", name, error, extra=extra)
    return ""


def member_summaries(fields: Mapping[str, str]) -> list[dict[str, Any] | None]:
    """The summaries of a stream entry's members, in their order; None for each that is missing."""
    members = json.loads(fields["members"])
    try:
        found = json.loads(fields.get("summaries") or "[]")
    except (ValueError, RecursionError):
        found = []
    if not isinstance(found, list) or len(found) != len(members):
        return [None] * len(members)
    return [each if isinstance(each, dict) else None for each in found]


def _facts(record: ScoredTrajectory) -> dict[str, Any]:
    """Ids of the group are in its entry."""
    failure, calls, usage = record.failure, record.tool_calls, record.usage
    return {
        "status": record.status,
        "stop_reason": record.stop_reason,
        "score": record.score,
        "sample": record.sample_index,
        "cause": failure and failure.cause,
        "stage": failure and failure.stage,
        "type": failure and _short(failure.type),
        "attempts": record.attempt,
        "turns": len(record.turns),
        "messages": len(record.messages),
        "calls": _nonzero(calls.model_dump()),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": _number(record.cost_usd, 9),
        "evaluation": int(record.evaluation),
    }


def _times(record: ScoredTrajectory) -> dict[str, Any]:
    seconds = {stage: _number(took, 2) for stage, took in record.stage_seconds.items()}
    return {
        "created": _number(record.created, 3),
        "seconds": _nonzero(seconds),
        "policy_oldest": _short(record.policy_oldest),
        "policy_newest": _short(record.policy_newest),
        "agent": _short(record.agent.kind),
        "model": _short(record.agent.model),
    }


def _of_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """What most envs report. The report is the env's, so any key may have any type."""
    given = report.get("flags")
    flags = [_short(flag) for flag in given if isinstance(flag, str)] if _is_list(given) else []
    return {
        "reason": _short(report.get("reason")),
        "tests_failed": _tests_failed(report),
        "patch_bytes": _count(report.get("patch_bytes")),
        "dropped": _count(report.get("dropped_count")),
        "flags": flags[:FLAGS_MOST],
        "more_flags": max(0, len(flags) - FLAGS_MOST),
    }


def _tests_failed(report: Mapping[str, Any]) -> int:
    status, tests = report.get("tests_status"), report.get("tests")
    if isinstance(status, Mapping):
        return sum(_count(e.get("failure")) for e in status.values() if isinstance(e, Mapping))
    failed = tests.get("failed") if isinstance(tests, Mapping) else None
    if not isinstance(failed, Mapping):
        return 0
    names = failed.get("names")
    return (len(names) if _is_list(names) else 0) + _count(failed.get("more"))


def _is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def _number(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None and math.isfinite(value) else None


def _short(value: Any) -> str:
    return value[:TEXT_CHARACTERS] if isinstance(value, str) else ""


def _nonzero(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: number for name, number in numbers.items() if number}
