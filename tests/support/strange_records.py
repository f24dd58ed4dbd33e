"""Records as nobody should write them: random shapes, and texts that would deceive."""

from __future__ import annotations

import random
from typing import Any

from hermes_queue.wire.arrays import PackedArray

FIELDS = (
    *("trajectory_id", "run_id", "group_id", "sample_index", "env", "agent", "score", "status"),
    *("failure", "attempts", "messages", "tools", "events", "turns", "sequences", "nodes"),
    *("branches", "program", "tool_calls", "stage_seconds", "usage", "report", "regraded"),
    *("provenance", "created", "rewards", "policy_version", "stop_reason"),
)
KEYS = (
    *("role", "content", "reasoning", "tool_calls", "tool_call_id", "function", "name", "id"),
    *("arguments", "ids", "loss_mask", "logprobs", "prompt_ids", "completion_ids", "turn", "event"),
    *("patch", "tests_status", "FAIL_TO_PASS", "failing", "failure", "message", "parent", "turns"),
    *("policy_spans", "reason", "dropped", "flags", "output_tail", "usage", "passed", "not_run"),
)
PIECES = (
    *("a", "é", "😀", "\n", "\t", "\r", "\r\n", "\x00", "\x1b", "\x7f", "\x9b31m", "\u202e"),
    *("\u200b", "\ud800", "\udc00", "\ufe0f", "\U000e0041", "\x1b[31m", "\x1b[1;4m", "\x1b[0m"),
    *("\x1b[38;5;196m", "\x1b[48;2;1;2;3m", "\x1b[2K", "\x1b]0;title\x07", "\x1b[", "\x1b[8m"),
    *("\x1b[4:3m", "\x1b[38;5m", "\x1b[30;40m", "[exit code 1]", '{"command": "ls"}', "⟨U+202E⟩"),
)


def text(rng: random.Random, most: int = 30) -> str:
    """A text of such pieces."""
    return "".join(rng.choices(PIECES, k=rng.randrange(most)))


def value(rng: random.Random, depth: int = 4) -> Any:
    """Anything that msgpack or JSON may hold, and nothing that a reader expects."""
    kind = rng.randrange(14 if depth else 10)
    if kind < 3:
        return text(rng)
    if kind < 10:
        plain = (None, True, 0, -1, 2**70, 0.5, float("nan"), float("inf"), b"\xff\x00", "tool")
        arrays = (PackedArray("i", b"\1\0\0\0" * 3), PackedArray("f", b"\0" * 8))
        return rng.choice((*plain, "assistant", "r.g.0", *arrays, PackedArray("B", b"\1\7")))
    if kind < 12:
        return [value(rng, depth - 1) for _ in range(rng.randrange(5))]
    keys = (*rng.choices(KEYS, k=rng.randrange(6)), *rng.sample([1, None, b"k", "\x1b["], k=1))
    return {key: value(rng, depth - 1) for key in keys}


def record(rng: random.Random) -> dict[Any, Any]:
    """A record in which any field may be anything."""
    return {name: value(rng) for name in rng.sample(FIELDS, k=rng.randrange(len(FIELDS)))}


def nearly(rng: random.Random, sound: dict[str, Any]) -> dict[str, Any]:
    """A sound record of which one value, anywhere in it, was replaced."""
    name = rng.choice(list(sound))
    return {**sound, name: _spoilt(rng, sound[name], value(rng))}


def _spoilt(rng: random.Random, found: Any, other: Any) -> Any:
    if isinstance(found, dict) and found and rng.random() < 0.9:
        name = rng.choice(list(found))
        return {**found, name: _spoilt(rng, found[name], other)}
    if isinstance(found, list) and found and rng.random() < 0.9:
        place = rng.randrange(len(found))
        return [*found[:place], _spoilt(rng, found[place], other), *found[place + 1 :]]
    return other
