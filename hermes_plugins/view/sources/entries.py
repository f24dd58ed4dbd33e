"""A group's entry in the stream, which the archive keeps: its members and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import UnreadableRecord, decode_raw
from hermes_plugins.view.records.values import mapping, number
from hermes_plugins.view.sources.base import FoundRecord

_MEMBERS = 4096
"""Most names of one entry that are looked at; a group has at most 1,024 and its refills."""


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """What an entry says of one member, without its body."""

    name: str
    """Of its body: the trajectory id and, after a purge of its run, ~ and the life."""
    extra: bool
    stale: bool
    finished: float | None
    known: Mapping[str, Any]
    """Fields of the record that the entry repeats."""
    summary: Mapping[str, Any] | None
    """Its summary, by the keys of the stream entry; None in entries of older workers."""

    def found(self, location: Location, body: bytes | None, problem: str) -> FoundRecord:
        """The record in `body`, or if there is none, the reason `problem`."""
        raw: Mapping[str, Any] | None = None
        if body is not None:
            try:
                raw = decode_raw(body)
            except UnreadableRecord as error:
                problem = str(error)
        return FoundRecord(
            location,
            raw,
            "" if raw is not None else problem,
            len(body or b""),
            finished=self.finished,
            extra=self.extra,
            stale=self.stale,
            known=self.known,
        )

    def summed_up(self, location: Location) -> FoundRecord:
        """The row that the summary makes, until the body is read."""
        summary = self.summary or {}
        known = {**self.known, **record_of_summary(summary)}
        return replace(self.found(location, None, ""), known=known, partial=True)


def members_of(fields: Mapping[str, str]) -> list[MemberFacts]:
    """The members and extras of an entry; none of an entry that is not ours. Never raises."""
    members = _names(fields.get("members"))
    extras = _names(fields.get("extras"))
    stale = set(_names(fields.get("stale")))
    published = _list(fields.get("published"))
    summaries = _list(fields.get("summaries"))
    summaries = summaries if len(summaries) == len(members) else []
    finished = _number(fields.get("finished"))
    columns = ("run_id", "group_id", "env", "instance_id")
    shared: dict[str, Any] = {name: fields[name] for name in columns if fields.get(name)}
    size = _number(fields.get("size"))
    if size is not None:
        shared["group_size"] = int(size)
    found = []
    for at, name in enumerate([*members, *extras]):
        own = at < len(members)
        summary = summaries[at] if own and at < len(summaries) else None
        taken = number(published[at]) if own and at < len(published) else None
        found.append(
            MemberFacts(
                name,
                not own,
                name in stale,
                taken or finished,
                {**shared, "trajectory_id": name.partition("~")[0]},
                summary if isinstance(summary, dict) else None,
            )
        )
    return found


def record_of_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record that its summary repeats; what is zero is not in a summary."""
    same = ("status", "stop_reason", "score", "created", "policy_oldest", "policy_newest")
    report = {name: summary[name] for name in ("reason", "patch_bytes", "flags") if name in summary}
    report["dropped_count"] = summary.get("dropped", 0)
    report["tests_status"] = {"all": {"failure": summary.get("tests_failed", 0)}}
    failure = {name: summary[name] for name in ("cause", "stage", "type") if name in summary}
    return {
        **{name: summary[name] for name in same if name in summary},
        "sample_index": summary.get("sample", 0),
        "attempt": summary.get("attempts", 1),
        "agent": {"kind": summary.get("agent"), "model": summary.get("model")},
        "failure": failure or None,
        "turns": _count(summary.get("turns")),
        "messages": _count(summary.get("messages")),
        "tool_calls": mapping(summary.get("calls")),
        "usage": {name: summary.get(name, 0) for name in ("prompt_tokens", "completion_tokens")},
        "cost_usd": summary.get("cost"),
        "stage_seconds": mapping(summary.get("seconds")),
        "report": report,
        "evaluation": summary.get("evaluation") == 1,
    }


def decoded_fields(raw: Mapping[bytes, bytes] | Mapping[Any, Any]) -> dict[str, str]:
    """The fields of an entry as text, whatever they hold."""
    return {_text(name): _text(value) for name, value in raw.items()}


def found_members(
    fields: Mapping[str, str],
    bodies: Mapping[str, bytes | None],
    place: Callable[[str], Location],
    problems: Mapping[str, str],
) -> Sequence[FoundRecord]:
    """All members of a group, and those extras that have a body."""
    found = []
    for facts in members_of(fields):
        body = bodies.get(facts.name)
        problem = problems.get(facts.name, f"the body of {facts.name} is gone")
        if body is not None or not facts.extra:
            found.append(facts.found(place(facts.name), body, problem))
    return found


def _names(text: str | None) -> list[str]:
    return [name for name in _list(text)[:_MEMBERS] if isinstance(name, str)]


def _list(text: str | None) -> list[Any]:
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _number(text: str | None) -> float | None:
    try:
        return number(float(text or ""))
    except ValueError:
        return None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _count(value: object) -> range:
    """As many elements as a summary counts, without making them."""
    return range(value) if isinstance(value, int) and 0 <= value < 1 << 31 else range(0)
