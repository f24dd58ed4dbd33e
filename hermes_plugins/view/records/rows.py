"""The row of a record in the index: what lists show, sort and filter by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.values import (
    TEXT_CHARACTERS,
    listing,
    mapping,
    number,
    text,
    whole,
)
from hermes_queue.sinks.selection import caught_reason, report_tampered

STAGES = ("queue", "load", "prepare", "acquire", "setup", "agent", "verify", "publish")
_FLAGS, _FLAG_CHARACTERS = 32, 80
"""Most flags of a row, and the longest: a report may hold anything."""
_TOOLS = 32
DAMAGED = "damaged"
"""Status of a row whose record cannot be read."""


@dataclass(slots=True)
class IndexRow:
    """One row; the fields are the columns, in order. None is what a record does not say."""

    id: str
    run: str | None = None
    env: str | None = None
    instance: str | None = None
    sample: int | None = None
    grp: str | None = None
    """The group."""
    size: int | None = None
    """Size of the group."""
    model: str | None = None
    agent: str | None = None
    score: float | None = None
    status: str = DAMAGED
    stop: str | None = None
    cause: str | None = None
    stage: str | None = None
    type: str | None = None
    attempts: int | None = None
    turns: int | None = None
    messages: int | None = None
    calls_attempted: int | None = None
    calls_valid: int | None = None
    calls_ok: int | None = None
    calls_error: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    """Of all stages but the time in the queue."""
    s_queue: float | None = None
    s_load: float | None = None
    s_prepare: float | None = None
    s_acquire: float | None = None
    s_setup: float | None = None
    s_agent: float | None = None
    s_verify: float | None = None
    s_publish: float | None = None
    policy_oldest: str | None = None
    policy_newest: str | None = None
    reason: str | None = None
    tests_failed: int | None = None
    patch_bytes: int | None = None
    flags: str = ""
    """Each flag between two line ends, so that a whole one can be looked for; "" = none."""
    tools: str = ""
    """Names of the tools that were called, as `flags`."""
    evaluation: int = 0
    extra: int = 0
    """1: a sample outside its group; neither size nor mean of the group include it."""
    stale: int = 0
    """1: its group says that it was too old when it was published."""
    bytes: int | None = None
    """Size of the record as it is stored."""
    problem: str | None = None
    """Why the record cannot be read."""
    partial: int = 0
    """1: made of the summary in the stream; the record itself has not been read."""
    created: float | None = None
    finished: float | None = None


COLUMNS = tuple(field.name for field in fields(IndexRow))


def row_of(raw: Mapping[str, Any], location: Location) -> IndexRow:
    """The row of a record. Never raises: a field of a wrong type is as good as missing.

    A record without a trajectory id, or with one that no worker gives, has the status `damaged`.
    """
    name = id_of(raw)
    if name is None:
        return damaged_row(location, "the record has no trajectory id")
    agent, failure = mapping(raw.get("agent")), mapping(raw.get("failure"))
    calls, usage = mapping(raw.get("tool_calls")), mapping(raw.get("usage"))
    report = mapping(raw.get("report"))
    seconds = _stage_seconds(raw.get("stage_seconds"))
    return IndexRow(
        id=name,
        run=text(raw.get("run_id")),
        env=text(raw.get("env")),
        instance=text(raw.get("instance_id")),
        sample=whole(raw.get("sample_index")),
        grp=text(raw.get("group_id")),
        size=whole(raw.get("group_size")),
        model=text(agent.get("model")),
        agent=text(agent.get("kind", "oracle")),
        score=number(raw.get("score")),
        status=text(raw.get("status"), 32) or DAMAGED,
        stop=text(raw.get("stop_reason"), 64),
        cause=text(failure.get("cause"), 64),
        stage=text(failure.get("stage"), 64),
        type=text(failure.get("type"), 128),
        attempts=whole(raw.get("attempt")),
        turns=_length(raw.get("turns")),
        messages=_length(raw.get("messages")),
        calls_attempted=whole(calls.get("attempted", 0)),
        calls_valid=whole(calls.get("schema_valid", 0)),
        calls_ok=whole(calls.get("ok", 0)),
        calls_error=whole(calls.get("error", 0)),
        prompt_tokens=whole(usage.get("prompt_tokens", 0)),
        completion_tokens=whole(usage.get("completion_tokens", 0)),
        cost=number(raw.get("cost_usd")),
        seconds=number(sum(v for k, v in seconds.items() if k != "s_queue")) if seconds else None,
        **seconds,
        policy_oldest=text(raw.get("policy_oldest")),
        policy_newest=text(raw.get("policy_newest")),
        reason=text(report.get("reason")) or text(failure.get("message")),
        tests_failed=_tests_failed(report),
        patch_bytes=_patch_bytes(report),
        flags=joined(_flags(report)),
        tools=joined(_tools(raw.get("messages"))),
        evaluation=int(raw.get("evaluation") is True),
        problem=None if text(raw.get("status")) else "the record has no status",
        created=number(raw.get("created")) or None,
        finished=number(raw.get("created")) or None,
    )


def id_of(raw: Mapping[str, Any]) -> str | None:
    """The trajectory id of a record; None if it has none that a worker gives."""
    name = raw.get("trajectory_id")
    return name if isinstance(name, str) and _is_name(name) else None


def damaged_row(location: Location, problem: str = "") -> IndexRow:
    """The row of what cannot be read as a record: it is counted, and shown as such.

    Its id is the name that the record has in its source, or one made of the place.
    """
    name = location.member
    if not _is_name(name):
        place = f"{location.source}\0{location.file}\0{location.offset}\0{name}"
        digest = hashlib.sha256(place.encode(errors="replace")).hexdigest()
        name = f"damaged-{digest[:20]}"
    return IndexRow(id=name, problem=text(problem) or "unreadable")


def _is_name(name: str) -> bool:
    return 0 < len(name) <= TEXT_CHARACTERS and text(name) == name


def joined(names: Iterable[str]) -> str:
    """Names as a column holds them: each once, between two line ends; "" for none."""
    found = list(dict.fromkeys(names))
    return "\n" + "\n".join(found) + "\n" if found else ""


def split(column: str | None) -> list[str]:
    """The names in a column made by `joined`."""
    return column.strip("\n").split("\n") if column else []


def _length(value: object) -> int:
    return len(value) if isinstance(value, list | tuple | range) else 0


def _stage_seconds(value: object) -> dict[str, Any]:
    given = mapping(value)
    found = {f"s_{name}": number(given.get(name)) for name in STAGES}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _flags(report: Mapping[str, Any]) -> Iterator[str]:
    """What the verifier, or a pattern at publication, found suspicious."""
    if report_tampered(report):
        yield "tampered"
    if report.get("dropped_count") or report.get("dropped"):
        yield "dropped_paths"
    if report.get("suspect"):
        yield "suspect"
    if reason := caught_reason(report):
        yield reason
    for flag in listing(report.get("flags"))[:_FLAGS]:
        if found := text(flag, _FLAG_CHARACTERS):
            yield " ".join(found.split()) or "flag"


def _tools(messages: object) -> Iterator[str]:
    names: set[str] = set()
    for message in listing(messages):
        for call in listing(message.get("tool_calls")) if isinstance(message, dict) else ():
            function = call.get("function") if isinstance(call, dict) else None
            name = text(function.get("name"), 64) if isinstance(function, dict) else None
            if name and name not in names and len(names) < _TOOLS:
                names.add(name)
                yield " ".join(name.split())


def _tests_failed(report: Mapping[str, Any]) -> int | None:
    """The sum of all `failure` in tests_status, as SWE-bench has it, or of the failed names."""
    found = [
        count
        for part in mapping(report.get("tests_status")).values()
        if (count := whole(mapping(part).get("failure"))) is not None
    ]
    if found:
        return whole(sum(found))
    failed = mapping(mapping(report.get("tests")).get("failed"))
    count = len(listing(failed.get("names"))) + (whole(failed.get("more")) or 0)
    return whole(count) if failed else None


def _patch_bytes(report: Mapping[str, Any]) -> int | None:
    given = whole(report.get("patch_bytes"))
    patch = report.get("patch")
    if given is None and isinstance(patch, str):
        return len(patch.encode(errors="replace"))
    return given
