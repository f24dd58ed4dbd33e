"""The answer of a judge, checked: a number, and quotes that are really there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from hermes_queue.models import Message
from workers.judging.transcript import texts_of

ANSWER_CHARACTERS = 64 << 10
FINDINGS_MOST = 20
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n```", re.DOTALL)


class Unusable(Exception):
    """An answer is no opinion on the case; the message says why."""


class JudgedPassage(BaseModel):
    """A passage that a judge has quoted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    message: Annotated[int, Field(ge=0, le=10**6)]
    quote: Annotated[str, Field(min_length=1, max_length=1000)]
    label: Annotated[str, Field(min_length=1, max_length=80)]


class Opinion(BaseModel):
    """What a judge says about one trajectory."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    score: Annotated[FiniteFloat, Field(ge=0, le=1)]
    reason: Annotated[str, Field(max_length=4000)] = ""
    findings: tuple[JudgedPassage, ...] = ()
    """Passages whose quotes are in their messages."""
    unfounded: int = 0
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
    given = value.get("findings", [])
    given = given if isinstance(given, list) else []
    passages = filter(None, map(_passage, given[:FINDINGS_MOST]))
    found = [each for each in passages if _is_there(each, messages)]
    try:
        return Opinion(
            score=score,  # type: ignore[arg-type]  # checked here
            reason=reason if isinstance(reason, str) else "",
            findings=tuple(found),
            unfounded=len(given) - len(found),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Unusable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _object(answer: str) -> dict[str, Any]:
    text = answer.strip()
    if len(text) > ANSWER_CHARACTERS:
        raise Unusable(f"it has more than {ANSWER_CHARACTERS:,} characters")
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


def _is_there(passage: JudgedPassage, messages: Sequence[Message]) -> bool:
    """Whether the message has these words; blanks and line ends may differ."""
    if passage.message >= len(messages):
        return False
    words = " ".join(passage.quote.split())
    return bool(words) and any(
        words in " ".join(text.split()) for text in texts_of(messages[passage.message])
    )
