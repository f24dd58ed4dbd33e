"""What stands above the tabs of a trajectory: ids, outcome, stages, events, earlier attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_plugins.view.present.conversation import messages, outline, turn_of_messages
from hermes_plugins.view.present.passages import ShownFinding, flagged_outline
from hermes_plugins.view.present.shapes import items, mapping, number, numbers_of, tree, whole
from hermes_plugins.view.present.texts import text_of
from hermes_plugins.view.present.tokens import sequences
from hermes_plugins.view.present.verdicts import report
from hermes_queue.terminal.escapes import known_label, label

STAGES = ("queue", "load", "prepare", "acquire", "setup", "agent", "verify", "release", "publish")
EVENTS_MOST = 2000
ATTEMPTS_MOST = 100
_FAILURE_BYTES = 16 << 10
_OUTPUT_BYTES = 64 << 10
_ATTEMPT_BYTES = 32 << 10
"""Of the texts of one earlier attempt."""


def head(raw: Mapping[Any, Any]) -> dict[str, Any]:
    """Who, what and how it ended. Names are labels, numbers are numbers or None.

    Keys: `id`, `run`, `group`, `sample`, `group_size`, `env`, `instance`, `agent` (`kind`, `model`,
    `base_url`, `sampling`, `params`), `score`, `status`, `stop_reason`, `failure` (None, or
    `cause`, `kind`, `stage`, `type`, `refillable` and the text `message`), `rewards`, `tool_calls`,
    `usage`, `cost`, `attempt`, `attempts`, `epoch`, `turns`, `messages`, `policy` (`requested`,
    `oldest`, `newest`, `begun`), `created`, `evaluation`, `requeued_from`, `regraded`,
    `provenance`, `tools` (names), `program` (None, or as the record has it with the texts `stdout`
    and `stderr`).
    """
    agent = mapping(raw.get("agent"))
    return {
        "id": label(raw.get("trajectory_id")),
        "run": label(raw.get("run_id")),
        "group": label(raw.get("group_id")),
        "sample": whole(raw.get("sample_index")),
        "group_size": whole(raw.get("group_size")),
        "env": label(raw.get("env")),
        "instance": label(raw.get("instance_id")),
        "agent": {
            "kind": label(agent.get("kind", "oracle")),
            "model": known_label(agent.get("model")),
            "base_url": known_label(agent.get("base_url")),
            "sampling": tree(mapping(agent.get("sampling"))),
            "params": tree(mapping(agent.get("params"))),
        },
        "score": number(raw.get("score")),
        "status": label(raw.get("status")),
        "stop_reason": label(raw.get("stop_reason")),
        "failure": _failure(raw.get("failure")),
        "rewards": numbers_of(raw.get("rewards")),
        **_measured(raw),
        **_origin(raw),
    }


def _measured(raw: Mapping[Any, Any]) -> dict[str, Any]:
    counts = ("attempted", "schema_valid", "ok", "error")
    calls, usage = mapping(raw.get("tool_calls")), mapping(raw.get("usage"))
    tokens = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {
        "tool_calls": {name: whole(calls.get(name, 0)) for name in counts},
        "usage": {name: whole(usage.get(name, 0)) for name in tokens},
        "cost": number(raw.get("cost_usd")),
        "attempt": whole(raw.get("attempt")),
        "attempts": len(items(raw.get("attempts"))) + 1,
        "epoch": whole(raw.get("epoch")),
        "turns": len(items(raw.get("turns"))),
        "messages": len(items(raw.get("messages"))),
    }


def _origin(raw: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "policy": {
            "requested": known_label(raw.get("policy_version")),
            "oldest": known_label(raw.get("policy_oldest")),
            "newest": known_label(raw.get("policy_newest")),
            "begun": whole(raw.get("policy_begun")),
        },
        "created": number(raw.get("created")),
        "evaluation": bool(raw.get("evaluation")),
        "requeued_from": known_label(raw.get("requeued_from")),
        "regraded": tree(raw.get("regraded")),
        "provenance": tree(raw.get("provenance")),
        "tools": [_tool_name(tool) for tool in items(raw.get("tools"))[:200]],
        "program": _program(raw.get("program")),
    }


def stages(raw: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """`{"stage", "seconds"}` of the attempt that counts, in the order in which they happen."""
    return _stages(raw.get("stage_seconds"))


def events(raw: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """The decisions of the agent loop: `{"event", "turn", "at", "details"}`, in order.

    `at` is the number of the message before which it happened: the first one that the turn
    sampled; None if that is not known, as at the end.
    """
    place: dict[int, int] = {}
    for n, turn in turn_of_messages(raw).items():
        place[turn] = min(n, place.get(turn, n))
    return [_event(each, place) for each in items(raw.get("events"))[:EVENTS_MOST]]


def attempts(raw: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Earlier attempts that failed, oldest first, with what was kept of them.

    Keys: `attempt`, `epoch`, `failure` and `stages` as of the record, `host`, `worker`, `sandbox`,
    `begun_at`, `usage`, `cost`, `message_count`, `messages` (the newest that were kept, as
    `conversation.messages` has them), `events`.
    """
    given = items(raw.get("attempts"))[:ATTEMPTS_MOST]
    room = max(1, len(given))
    return [_attempt(mapping(each), 4 * _ATTEMPT_BYTES // room) for each in given]


def _attempt(raw: Mapping[Any, Any], room_bytes: int) -> dict[str, Any]:
    usage = mapping(raw.get("usage"))
    return {
        "attempt": whole(raw.get("attempt")),
        "epoch": whole(raw.get("epoch")),
        "failure": _failure(raw.get("failure")),
        "stages": _stages(raw.get("stage_seconds")),
        "host": label(raw.get("host")),
        "worker": known_label(raw.get("worker")),
        "sandbox": known_label(raw.get("sandbox_id")),
        "begun_at": number(raw.get("begun_at")),
        "usage": numbers_of(usage),
        "cost": number(raw.get("cost_usd")),
        "message_count": whole(raw.get("message_count", 0)),
        "messages": messages(raw, total_bytes=room_bytes),
        "events": events(raw)[:100],
    }


def _stages(value: object) -> list[dict[str, Any]]:
    seconds = numbers_of(value)
    known = [name for name in STAGES if name in seconds]
    rest = [name for name in seconds if name not in STAGES]
    return [{"stage": name, "seconds": seconds[name]} for name in known + rest]


def _event(value: object, place: Mapping[int, int]) -> dict[str, Any]:
    known = mapping(value)
    turn = whole(known.get("turn"))
    details = {name: each for name, each in known.items() if name not in ("event", "turn")}
    return {
        "event": label(known.get("event")),
        "turn": turn,
        "at": None if turn is None else place.get(turn),
        "details": tree(details if known else value),
    }


def _failure(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    known = mapping(value)
    return {
        **{name: label(known.get(name)) for name in ("cause", "stage", "type")},
        "kind": label(known.get("kind") or known.get("cause")),
        "refillable": bool(known.get("refillable")),
        "message": text_of(known.get("message") if known else value, _FAILURE_BYTES),
    }


def _program(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    known = mapping(value)
    texts = ("stdout", "stderr")
    return {
        **mapping(tree({name: each for name, each in known.items() if name not in texts})),
        **{name: text_of(known.get(name), _OUTPUT_BYTES) for name in texts},
    }


def _tool_name(tool: object) -> str:
    known = mapping(tool)
    return label(mapping(known.get("function")).get("name") or known.get("name"))


def page(raw: Mapping[str, Any], findings: Sequence[ShownFinding]) -> dict[str, Any]:
    """Head, report, stages, events, attempts, outline, findings and sequences, by these names.

    Args:
        raw: a record.
        findings: of judges about it, as `shown_findings` returns them.
    """
    return {
        "head": head(raw),
        "report": report(raw),
        "stages": stages(raw),
        "events": events(raw),
        "attempts": attempts(raw),
        "outline": flagged_outline(outline(raw), findings),
        "findings": findings,
        "sequences": sequences(raw),
    }
