"""The filter language, compiled to SQL with parameters: no text of a query becomes SQL.

`run:r1 env:swe_smith score:0 turns:>30 cost:<0.1 stop:max_turns,time_limit flag:* policy:<12
created:<2h -cause:sandbox "free text" grep:"site-packages"`: all terms must hold, a comma is *or*,
a minus *not*.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NoReturn

from hermes_plugins.view.index.fields import FIELDS, Field
from hermes_plugins.view.index.terms import FilterError, Term, Value, terms_of
from hermes_plugins.view.records.texts import words_of
from hermes_plugins.view.records.values import storable

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LARGE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)([a-z]*)", re.IGNORECASE)
_NOTHING = ("none", "null")
_STATES = {
    "stale": "stale = 1",
    "extra": "extra = 1",
    "evaluation": "evaluation = 1",
    "damaged": "problem IS NOT NULL",
}
_HIGHEST = "\U0010ffff"
_WORDS_MAX = 32


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled query."""

    where: str
    """An SQL condition over `t`, of constant parts and question marks."""
    parameters: tuple[Any, ...]
    grep: tuple[str, ...] = ()
    """Texts that the record itself must hold, which SQL cannot answer."""


@dataclass(frozen=True, slots=True)
class _Condition:
    sql: str
    parameters: tuple[Any, ...] = ()


def compiled(query: str, *, now: float | None = None) -> Filter:
    """Compile a query; an empty one meets everything.

    Args:
        query: the text, at most 2,000 characters.
        now: Unix seconds from which ages are counted; None = the present time.

    Raises:
        FilterError: it is not understood.
    """
    compiler = _Compiler(query, time.time() if now is None else now)
    conditions: list[_Condition] = []
    grep: list[str] = []
    for term in terms_of(query):
        if term.field == "grep":
            grep.append(compiler.grep(term))
            continue
        condition = compiler.condition(term)
        sql = f"(({condition.sql}) IS NOT TRUE)" if term.negated else f"({condition.sql})"
        conditions.append(_Condition(sql, condition.parameters))
    where = " AND ".join(condition.sql for condition in conditions) or "1"
    parameters = tuple(value for condition in conditions for value in condition.parameters)
    return Filter(where, parameters, tuple(grep))


class _Compiler:
    def __init__(self, query: str, now: float) -> None:
        self._query = query
        self._now = now

    def condition(self, term: Term) -> _Condition:
        if not term.field:
            return self._words(term.values[0])
        field = FIELDS.get(term.field)
        if field is None:
            self._unknown(term)
        if term.operator and len(term.values) > 1:
            self._fail("a comparison takes one value", term.values[1], f"write {term.field}:1,2")
        each = [self._one(field, term, value) for value in term.values]
        return _Condition(
            " OR ".join(condition.sql for condition in each),
            tuple(value for condition in each for value in condition.parameters),
        )

    def grep(self, term: Term) -> str:
        value = term.values[0]
        if term.negated or term.operator or len(term.values) > 1:
            self._fail(
                "grep: takes one text", value, 'write grep:"text", several times for several'
            )
        return value.text

    def _one(self, field: Field, term: Term, value: Value) -> _Condition:
        if field.kind not in ("number", "seconds", "time", "policy") and term.operator:
            self._fail(
                f"{term.field}: cannot be compared", value, f"write {term.field}:{value.text}"
            )
        if not value.quoted and field.kind not in ("state", "reviewed"):
            empty = "''" if field.kind == "names" else "NULL"
            if value.text == "*":
                return _Condition(f"{field.column} IS NOT {empty}")
            if value.text.lower() in _NOTHING and not term.operator:
                return _Condition(f"{field.column} IS {empty}")
        match field.kind:
            case "text":
                return self._text(field.column, value)
            case "names":
                return self._names(field.column, value)
            case "policy":
                return self._policy(term, value)
            case "reviewed":
                return self._reviewed(value)
            case "state":
                return self._state(value)
            case _:
                return self._number(field, term, value)

    def _text(self, column: str, value: Value) -> _Condition:
        text = storable(value.text)
        if value.quoted or "*" not in text:
            return _Condition(f"{column} = ?", (text,))
        core = text.strip("*")
        if "*" in core:
            self._fail("a star stands at an end", value, "quote the text if the star belongs to it")
        if not text.startswith("*"):
            return _Condition(f"{column} >= ? AND {column} < ?", (core, core + _HIGHEST))
        if text.endswith("*"):
            return _Condition(f"instr({column}, ?) > 0", (core,))
        return _Condition(f"substr({column}, ?) = ?", (-len(core), core))

    def _names(self, column: str, value: Value) -> _Condition:
        name = " ".join(storable(value.text).split())
        if value.quoted:
            return _Condition(f"instr({column}, ?) > 0", (f"\n{name}\n",))
        return _Condition(f"instr(lower({column}), ?) > 0", (name.strip("*").lower(),))

    def _policy(self, term: Term, value: Value) -> _Condition:
        if not term.operator:
            return _Condition("policy_oldest = ? OR policy_newest = ?", (value.text,) * 2)
        column = "policy_oldest" if "<" in term.operator else "policy_newest"
        number = self._figure(value.text, _LARGE, value, "a number")
        numeric = f"{column} GLOB '[0-9]*' AND NOT {column} GLOB '*[^0-9]*'"
        return _Condition(f"{numeric} AND CAST({column} AS REAL) {term.operator} ?", (number,))

    def _reviewed(self, value: Value) -> _Condition:
        if value.text.lower() in ("yes", "no", "*"):
            has = "NOT IN" if value.text.lower() == "no" else "IN"
            return _Condition(f"id {has} (SELECT id FROM reviews)")
        labels = (storable(value.text),)
        return _Condition("id IN (SELECT id FROM reviews WHERE label = ?)", labels)

    def _state(self, value: Value) -> _Condition:
        found = _STATES.get(value.text.lower())
        if found is None:
            self._fail(f"is:{value.text} is unknown", value, f"one of {', '.join(_STATES)}")
        return _Condition(found)

    def _number(self, field: Field, term: Term, value: Value) -> _Condition:
        low, dots, high = value.text.partition("..")
        if dots and not term.operator:
            at = Value(high, value.at + len(low) + 2, quoted=False)
            ends = [self._read(field, Value(low, value.at, quoted=False)), self._read(field, at)]
            if field.kind == "time":
                ends.sort()
            return _Condition(f"{field.column} BETWEEN ? AND ?", tuple(ends))
        number = self._read(field, value)
        if field.kind != "time":
            return _Condition(f"{field.column} {term.operator or '='} ?", (number,))
        if not term.operator:
            name = term.field
            hint = f"write {name}:<2h (newer), {name}:>2h (older) or {name}:>=2026-11-01"
            self._fail(f"{term.field}: needs a comparison", value, hint)
        is_age = _NUMBER.fullmatch(value.text) is not None
        operator = term.operator.translate(_TURNED) if is_age else term.operator
        return _Condition(f"{field.column} {operator} ?", (number,))

    def _read(self, field: Field, value: Value) -> float:
        if field.kind == "time":
            if _NUMBER.fullmatch(value.text):
                return self._now - self._figure(value.text, _UNITS, value, "an age such as 2h")
            return self._date(value)
        units = {**_UNITS, "": 1.0} if field.kind == "seconds" else _LARGE
        kind = "a duration such as 90 or 5m" if field.kind == "seconds" else "a number"
        return self._figure(value.text, units, value, kind)

    def _figure(self, text: str, units: dict[str, float], value: Value, kind: str) -> float:
        match = _NUMBER.fullmatch(text)
        unit = units.get(match[2].lower()) if match else None
        if match is None or unit is None or not math.isfinite(found := float(match[1]) * unit):
            known = ", ".join(name for name in units if name)
            self._fail(f"{text!r} is not {kind}", value, f"write {kind}; units: {known}")
        return found

    def _date(self, value: Value) -> float:
        try:
            found = datetime.fromisoformat(value.text)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            hint = "write an age (2h, 3d) or a date in UTC (2026-11-01, 2026-11-01T12:00)"
            self._fail(f"{value.text!r} is neither an age nor a date", value, hint)

    def _words(self, value: Value) -> _Condition:
        words = words_of(value.text)
        if not words:
            self._fail("there is no word in it", value, "search marks with grep: instead")
        if len(words) > _WORDS_MAX:
            self._fail(f"more than {_WORDS_MAX} words", value, "search a text with grep: instead")
        ends = "*" if not value.quoted and value.text.endswith("*") else ""
        wanted = " ".join(f'"{word}"' for word in words) + ends
        return _Condition("n IN (SELECT rowid FROM words WHERE words MATCH ?)", (wanted,))

    def _unknown(self, term: Term) -> NoReturn:
        close = get_close_matches(term.field, FIELDS, n=1)
        meant = f"did you mean {close[0]}:? " if close else ""
        names = ", ".join(name for name in FIELDS if "." not in name)
        hint = f"{meant}Known: {names}. Put a text with a colon in quotes"
        raise FilterError(f"there is no field {term.field!r}", self._query, term.at, hint)

    def _fail(self, message: str, value: Value, hint: str) -> NoReturn:
        raise FilterError(message, self._query, value.at, hint)


_TURNED = str.maketrans("<>", "><")


def described() -> Sequence[tuple[str, str]]:
    """The fields with their help, for people."""
    return [(name, field.help) for name, field in FIELDS.items()]


def field_table() -> Sequence[tuple[str, str]]:
    """The table of the documentation, its head first."""
    return [("field", "meets"), *((f"`{name}:`", said) for name, said in described())]
