"""Findings at the passages that they quote, and labels of people.

Findings come with the record, from patterns and the judge of its job, and from files. One whose
quote is not there is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypedDict, cast

from pydantic import ValidationError

from hermes_plugins.view.present.conversation import (
    OutlineEntry,
    ShownMessage,
    all_messages,
    arguments_of,
)
from hermes_plugins.view.present.patches import patch_text
from hermes_plugins.view.present.shapes import items, mapping
from hermes_plugins.view.present.texts import ShownText, TextMark, text_of, utf16_units
from hermes_queue.bodies.findings import TranscriptFinding
from hermes_queue.bodies.reviews import TrajectoryReview
from hermes_queue.terminal.escapes import label

MARK = "finding"
"""Class of a quoted passage."""
OWN_MOST = 200
"""Findings of a report that are shown."""
PLACES_MOST = 20
"""Passages with the same quote that are marked in one text."""


class ShownFinding(TypedDict):
    """A finding, and whether what it quotes is there."""

    label: str
    by: str
    note: ShownText
    quote: ShownText
    message: int | None
    """The message that has the quote; None = the patch, or the trajectory as a whole."""
    place: str
    """`message`, `patch`, `trajectory`; "" if it is broken."""
    broken: bool
    """Whether there is no such message, or the quote is not in it word for word."""


def shown_findings(
    raw: Mapping[Any, Any], findings: Iterable[TranscriptFinding]
) -> list[ShownFinding]:
    """The findings in a record's report and `findings`, each with the place of its quote."""
    given = all_messages(raw)
    texts: dict[int, list[str]] = {}
    found: list[ShownFinding] = []
    for each in dict.fromkeys(chain(_own(raw), findings)):
        message, place = _place(raw, given, each, texts)
        found.append(
            {
                "label": label(each.label),
                "by": label(each.by),
                "note": text_of(each.note),
                "quote": text_of(each.quote),
                "message": message,
                "place": place,
                "broken": not place,
            }
        )
    return found


def _own(raw: Mapping[Any, Any]) -> Iterator[TranscriptFinding]:
    """Those in the report, as far as they are any: an env may report what it likes."""
    for each in items(mapping(raw.get("report")).get("findings"))[:OWN_MOST]:
        with suppress(ValidationError):
            yield TranscriptFinding.model_validate({**mapping(each), "trajectory_id": "-"})


def with_passages(
    shown: Sequence[ShownMessage], findings: Sequence[ShownFinding]
) -> list[ShownMessage]:
    """The messages with the quoted passages marked, and with the labels among their flags."""
    by_message = _by_message(findings)
    return [_marked(each, by_message.get(each["n"], ())) for each in shown]


def shown_review(review: TrajectoryReview) -> dict[str, Any]:
    """The label of a person, with the note, by whom and when."""
    note, by = text_of(review.note), label(review.by)
    return {"label": review.label, "note": note, "by": by, "at": review.at}


def flagged_outline(
    outline: Sequence[OutlineEntry], findings: Sequence[ShownFinding]
) -> list[OutlineEntry]:
    """The outline with the labels of findings among the flags of messages."""
    by_message = _by_message(findings)
    return [
        cast(OutlineEntry, {**each, "flags": _flags(each["flags"], by_message[each["n"]])})
        if each["n"] in by_message
        else each
        for each in outline
    ]


def _place(
    raw: Mapping[Any, Any],
    given: Sequence[Any],
    finding: TranscriptFinding,
    texts: dict[int, list[str]],
) -> tuple[int | None, str]:
    """(message, place) of a finding; the place is "" if the quote is not where it says."""

    def has(n: int) -> bool:
        if n not in texts:
            texts[n] = list(_texts(given[n]))
        return any(finding.quote in text for text in texts[n])

    if finding.message is not None:
        there = finding.message < len(given) and has(finding.message)
        return finding.message, "message" if there else ""
    if not finding.quote:
        return None, "trajectory"
    patch, _ = patch_text(raw)
    if isinstance(patch, str) and finding.quote in patch:
        return None, "patch"
    message = next((n for n in range(len(given)) if has(n)), None)
    return message, "" if message is None else "message"


def _texts(message: object) -> Iterable[str]:
    """The texts of a message in which a quote may be; an empty one is in each message."""
    yield ""
    known = mapping(message)
    values = [known.get("content"), known.get("reasoning")]
    for call in items(known.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        values += [function.get("name"), function.get("arguments")]
        values += (arguments_of(call) or {}).values()
    for value in values:
        if isinstance(value, str):
            yield value


def _by_message(findings: Iterable[ShownFinding]) -> dict[int, list[ShownFinding]]:
    found: dict[int, list[ShownFinding]] = {}
    for each in findings:
        if each["message"] is not None and not each["broken"]:
            found.setdefault(each["message"], []).append(each)
    return found


def _marked(message: ShownMessage, findings: Sequence[ShownFinding]) -> ShownMessage:
    if not findings:
        return message
    quotes = {each["quote"]["text"] for each in findings} - {""}
    marked = {
        **message,
        "content": _text(message["content"], quotes),
        "reasoning": message["reasoning"] and _text(message["reasoning"], quotes),
        "calls": [
            {
                **call,
                "arguments": _text(call["arguments"], quotes),
                "command": call["command"] and _text(call["command"], quotes),
            }
            for call in message["calls"]
        ],
        "flags": _flags(message["flags"], findings),
    }
    return cast(ShownMessage, marked)


def _flags(flags: Sequence[str], findings: Iterable[ShownFinding]) -> list[str]:
    return list(dict.fromkeys([*flags, *(each["label"] for each in findings)]))


def _text(text: ShownText, quotes: Iterable[str]) -> ShownText:
    """A quote is shown as its text is, so it is found in what is shown, as far as that goes."""
    marks: list[TextMark] = []
    for quote in quotes:
        at = -1
        for _ in range(PLACES_MOST):
            at = text["text"].find(quote, at + 1)
            if at < 0:
                break
            begin = utf16_units(text["text"][:at])
            marks.append((begin, begin + utf16_units(quote), MARK))
    if not marks:
        return text
    everything = sorted([*text["marks"], *marks], key=lambda mark: (mark[0], -mark[1]))
    return cast(ShownText, {**text, "marks": everything})
