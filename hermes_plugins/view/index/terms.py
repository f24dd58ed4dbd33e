"""The terms of a query with their places, so that errors name what is wrong where."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_queue.errors import HermesQueueError

QUERY_CHARACTERS = 2000
_TERMS = 64


class FilterError(HermesQueueError):
    """The query is not understood.

    Attributes:
        at: where it stops making sense, in UTF-16 code units.
        hint: what to write instead.
    """

    def __init__(self, message: str, query: str, at: int, hint: str = "") -> None:
        super().__init__(message)
        self.at = len(query[:at].encode("utf-16-le", errors="surrogatepass")) // 2
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Value:
    """One alternative of a term."""

    text: str
    at: int
    """Its first character in the query."""
    quoted: bool


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: `[-]field:[operator]value[,value...]`, or `[-]text`."""

    field: str
    """"" = a text."""
    operator: str
    """One of "", <, <=, >, >=."""
    values: tuple[Value, ...]
    negated: bool
    at: int


def terms_of(query: str) -> list[Term]:
    """The terms of a query, all of which must hold.

    Raises:
        FilterError: a quote is not closed, a value is missing, or the query is too long.
    """
    if len(query) > QUERY_CHARACTERS:
        most = f"{len(query)} characters, of which {QUERY_CHARACTERS} are read"
        raise FilterError(f"the query has {most}", query, QUERY_CHARACTERS, "shorten it")
    reading = _Reading(query)
    found: list[Term] = []
    while (term := reading.term()) is not None:
        found.append(term)
        if len(found) > _TERMS:
            raise FilterError(f"more than {_TERMS} terms", query, term.at, "leave some out")
    return found


class _Reading:
    def __init__(self, query: str) -> None:
        self._query = query
        self._at = 0

    def term(self) -> Term | None:
        while self._char().isspace():
            self._at += 1
        start = self._at
        if not self._char():
            return None
        negated = self._char() == "-" and not self._after(1).isspace() and self._after(1) != ""
        self._at += negated
        word = "" if self._char() == '"' else self._until(' \t\n\r\f\v":')
        if word and self._char() == ":":
            self._at += 1
            operator = self._operator()
            return Term(word.lower(), operator, self._values(word), negated, start)
        if word:
            self._at = start + negated
            return Term("", "", (self._word(" \t\n\r\f\v"),), negated, start)
        if self._char() == ":":
            raise FilterError(
                "a name is missing before the colon", self._query, self._at, "write run:r1"
            )
        return Term("", "", (self._quoted(),), negated, start)

    def _operator(self) -> str:
        for operator in ("<=", ">=", "<", ">"):
            if self._query.startswith(operator, self._at):
                self._at += len(operator)
                return operator
        return ""

    def _values(self, name: str) -> tuple[Value, ...]:
        found = [self._value(name)]
        while self._char() == ",":
            self._at += 1
            found.append(self._value(name))
        if self._char() and not self._char().isspace():
            raise FilterError(
                "a blank is missing behind the quote", self._query, self._at, "add a blank"
            )
        return tuple(found)

    def _value(self, name: str) -> Value:
        value = self._quoted() if self._char() == '"' else self._word(' \t\n\r\f\v,"')
        if not value.text:
            hint = f'write {name}:VALUE, or {name}:"VALUE" if it has blanks'
            raise FilterError(f"{name}: has no value", self._query, value.at, hint)
        return value

    def _word(self, ends: str) -> Value:
        start = self._at
        return Value(self._until(ends), start, quoted=False)

    def _quoted(self) -> Value:
        start = self._at
        self._at += 1
        parts: list[str] = []
        while (char := self._char()) != '"':
            if char == "\\" and self._after(1) in ('"', "\\"):
                self._at += 1
                char = self._char()
            if not char:
                raise FilterError("the quote is not closed", self._query, start, 'add a "')
            parts.append(char)
            self._at += 1
        self._at += 1
        return Value("".join(parts), start, quoted=True)

    def _until(self, ends: str) -> str:
        start = self._at
        while (char := self._char()) and char not in ends:
            self._at += 1
        return self._query[start : self._at]

    def _char(self) -> str:
        return self._after(0)

    def _after(self, count: int) -> str:
        return self._query[self._at + count : self._at + count + 1]
