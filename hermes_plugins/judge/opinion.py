"""The answer of a judge, checked: a number, and quotes that are really there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from hermes_plugins.judge.transcript import texts_of
from hermes_queue.models import Message

ANSWER_CHARACTERS = 64 << 10
FINDINGS_MOST = 20
QUOTE_CHARACTERS = 1000
REASON_CHARACTERS = 4000
"""Of a longer reason, the beginning is kept."""
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n```", re.DOTALL)
_THOUGHTS = re.compile(r"<think>.*</think>", re.DOTALL)
"""What a reasoning model says first where its server does not take it out."""


class Unusable(Exception):
    """An answer is no opinion on the case; the message says why."""


class JudgedPassage(BaseModel):
    """A passage that a judge has quoted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    message: Annotated[int, Field(ge=0, le=10**6)]
    quote: Annotated[str, Field(min_length=1, max_length=QUOTE_CHARACTERS)]
    label: Annotated[str, Field(min_length=1, max_length=80)]


class Opinion(BaseModel):
    """What a judge says about one trajectory."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    score: Annotated[FiniteFloat, Field(ge=0, le=1)]
    reason: Annotated[str, Field(max_length=REASON_CHARACTERS)] = ""
    findings: Annotated[tuple[JudgedPassage, ...], Field(max_length=FINDINGS_MOST)] = ()
    """Passages whose quotes are in their messages."""
    unfounded: Annotated[int, Field(ge=0)] = 0
    """Passages that were left out: no such message or quote, or malformed."""


def read_opinion(answer: str, case: str, messages: Sequence[Message]) -> Opinion:
    """The opinion in a judge's whole answer, which may be in one fence of Markdown.

    Raises:
        Unusable: it is not one JSON object, not about this case, or has no score from 0 to 1.
    """
    value = _object(answer)
    if value.get("case") != case:
        raise Unusable(f"case is not {case!r}")
    score, reason = value.get("score"), value.get("reason", "")
    if isinstance(score, int) and not isinstance(score, bool):
        score = float(score) if score in (0, 1) else -1.0
    if isinstance(score, float):
        score += 0.0  # no negative zero
    given = value.get("findings", [])
    given = given if isinstance(given, list) else []
    try:
        opinion = Opinion(
            score=score,  # type: ignore[arg-type]  # checked here
            reason=reason[:REASON_CHARACTERS] if isinstance(reason, str) else "",
            findings=tuple(filter(None, map(_passage, given[:FINDINGS_MOST]))),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Unusable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    malformed = len(given) - len(opinion.findings)
    return founded(opinion.model_copy(update={"unfounded": malformed}), messages)


def founded(opinion: Opinion, messages: Sequence[Message]) -> Opinion:
    """The opinion with those of its passages that are there, in the words of their messages."""
    texts: dict[int, list[str]] = {}
    found = []
    for each in opinion.findings:
        if each.message < len(messages):
            if each.message not in texts:
                texts[each.message] = list(texts_of(messages[each.message]))
            words = _words(each.quote)
            match = next(filter(None, map(words.search, texts[each.message])), None)
            if match and len(match[0]) <= QUOTE_CHARACTERS:
                found.append(each.model_copy(update={"quote": match[0]}))
    lost = len(opinion.findings) - len(found)
    update = {"findings": tuple(found), "unfounded": opinion.unfounded + lost}
    return opinion.model_copy(update=update)


def _words(quote: str) -> re.Pattern[str]:
    """Finds a quote; blanks and line ends may differ."""
    words = map(re.escape, quote.split())
    return re.compile(r"\s+".join(words) or r"(?!)")


def _object(answer: str) -> dict[str, Any]:
    text = answer.strip()
    if len(text) > ANSWER_CHARACTERS:
        raise Unusable(f"it has more than {ANSWER_CHARACTERS:,} characters")
    if thoughts := _THOUGHTS.match(text):
        text = text[thoughts.end() :].strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Unusable(f"it is no JSON: {text[:80]!r}") from None
    if not isinstance(value, dict):
        raise Unusable("it is no JSON object")
    return value


def _passage(value: object) -> JudgedPassage | None:
    try:
        return JudgedPassage.model_validate(value)
    except ValidationError:
        return None
