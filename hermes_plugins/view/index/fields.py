"""What can be filtered and sorted by, with its column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hermes_plugins.view.records.rows import STAGES

FieldKind = Literal[
    "text", "number", "seconds", "time", "policy", "names", "reviewed", "state", "grep"
]


@dataclass(frozen=True, slots=True)
class Field:
    """One word of the filter language."""

    kind: FieldKind
    column: str
    help: str


def _plain(kind: FieldKind, **columns: str) -> dict[str, Field]:
    return {name: Field(kind, *given.split(": ", 1)) for name, given in columns.items()}


FIELDS: Mapping[str, Field] = {
    **_plain(
        "text",
        id="id: trajectory id",
        run="run: run id",
        env="env: env",
        instance="instance: id of the item",
        group="grp: group id",
        model="model: model",
        agent="agent: kind of the agent",
        status="status: completed, unscored, failed or damaged",
        stop="stop: stop reason",
        cause="cause: cause of the failure",
        stage="stage: stage of the failure",
        type="type: type of the failure",
        reason="reason: reason in the verifier's report, or the message of the failure",
    ),
    **_plain(
        "number",
        sample="sample: number in the group",
        score="score: score; `score:none` = not measured",
        attempt="attempts: number of the attempt that ended it",
        turns="turns: model calls",
        messages="messages: messages",
        calls="calls_attempted: tool calls",
        errors="calls_error: tool calls that ended with an error",
        prompt="prompt_tokens: prompt tokens",
        completion="completion_tokens: completion tokens",
        tokens="prompt_tokens + completion_tokens: all tokens",
        cost="cost: US dollars",
        tests_failed="tests_failed: failed tests",
        patch="patch_bytes: bytes of the patch",
        bytes="bytes: bytes of the record as stored",
    ),
    **_plain(
        "seconds",
        seconds="seconds: all stages but the queue",
        **{f"seconds.{stage}": f"s_{stage}: stage {stage}" for stage in STAGES},
    ),
    **_plain(
        "time",
        created="created: when the record was made: an age (`<2h`) or a date (`>=2026-11-01`)",
        finished="finished: when Redis accepted it",
    ),
    **_plain(
        "policy", policy="policy_oldest: policy version; `<12` looks at the oldest, `>12` newest"
    ),
    **_plain(
        "names",
        flag="flags: flag, or a part of one; `flag:*` = any",
        tool="tools: tool that was called",
    ),
    **_plain("reviewed", reviewed="id: yes, no, or a label"),
    **_plain("state", **{"is": "status: stale, extra, evaluation or damaged"}),
    **_plain("grep", grep="id: exact text anywhere in the record, tool output included"),
}

SORTS: Mapping[str, str] = {
    "created": "created",
    "finished": "finished",
    "score": "score",
    "turns": "turns",
    "messages": "messages",
    "cost": "cost",
    "seconds": "seconds",
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "errors": "calls_error",
    "attempts": "attempts",
    "tests_failed": "tests_failed",
    "patch_bytes": "patch_bytes",
    "bytes": "bytes",
    "sample": "sample",
    "env": "env",
    "instance": "instance",
    "run": "run",
    "model": "model",
    "status": "status",
    "stop_reason": "stop",
    "reason": "reason",
    "id": "id",
}
"""Name in `sort=` -> column; with `-` before it, descending."""
