"""Finds the places in a test file where each function can be made to fail, and the edits for it.

The best place is a constant that the test expects (see `expectations`), in the statement that
fails because of the bug, or further down, about that statement's result, or among the parameters
that it compares with. If there is none, it is the expected exception class, then the other side of
a comparison, and finally an assertion added at the test's end.

Other values, texts and exceptions for a test to expect are written like the original. The
alternatives of one *spot* differ from the original, and from each other, in the same few
characters. So comparing some of them does not reveal the original to somebody who does not know
the right answer: none is more similar to the others than the rest.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import string
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from envs.swe.grading.expectations import (
    Expected,
    Function,
    compared_at,
    constants_after,
    constants_at,
    constants_like,
    exceptions_at,
    expected_alone,
    expected_constants,
    last_name,
    parameters_of,
)
from hermes_queue.syntax import literal as literal_value
from hermes_queue.syntax import parse_module

MAX_SOURCE_BYTES = 1 << 20
"""Larger test files are not changed."""
_FEW = (b"True", b"False", b"None")
"""Constants of which no type has more than two."""

_CONSONANTS = "bdfgklmnprtvz"
_REGEX_CHOICES = re.compile(r"[|\[?{*+(]")
_MIN_DIGITS_TEXT = 5
"""Length from which a changed digit makes a text unlikely to occur in an honest message."""
_MAX_ALIKE = 24
"""Replacements for one word: more than views need; a long file has thousands of candidates."""
_RARE_EXCEPTIONS = (
    "BufferError EOFError MemoryError RecursionError StopAsyncIteration UnboundLocalError "
    "ZeroDivisionError"
).split()
"""Builtin exceptions that nobody combines with others by inheritance."""
_LOOKUPS = frozenset(("AttributeError", "IndexError", "KeyError", "LookupError"))
_NO_LOOKUPS = ("NotImplementedError", "OSError")
"""Exceptions that code raises when it refuses a lookup, and that nobody combines with those."""


@dataclass(frozen=True, slots=True, order=True)
class TestFunction:
    """A test function as in node ids: file, and "test_x" or "Class::test_x"."""

    __test__ = False

    file: str
    name: str

    @classmethod
    def of(cls, test_id: str) -> TestFunction:
        """The function of a node id, without its parameters."""
        file, _, rest = test_id.partition("::")
        return cls(file, rest.partition("[")[0])


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replaces the bytes from `start` to `end` of a file by `text`."""

    start: int
    end: int
    text: bytes


def apply_edits(source: bytes, edits: Sequence[Replacement]) -> bytes:
    """The source with these edits, which must not overlap."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def merged(source: bytes, edits: Sequence[Replacement]) -> Replacement:
    """One edit that does the same as all of these."""
    start, end = min(edit.start for edit in edits), max(edit.end for edit in edits)
    moved = [Replacement(edit.start - start, edit.end - start, edit.text) for edit in edits]
    return Replacement(start, end, apply_edits(source[start:end], moved))


@dataclass(frozen=True, slots=True)
class Spot:
    """Edits of one constant that differ in the same few characters."""

    edits: tuple[Replacement, ...]
    weak: bool = False
    """Whether odd but honest code may pass with such an edit: a message may contain several texts,
    an exception may have several classes."""
    stated: bool = False
    """Whether the problem statement seems to show the right value here."""
    evident: bool = False
    """Whether the test itself seems to show it: it has the same word or number elsewhere, or there
    are too few values of this type to choose from."""

    @property
    def rank(self) -> int:
        """Quality of the spot; the least rank is the best."""
        return 2 if self.stated else 1 if self.weak else 0


@dataclass(frozen=True, slots=True)
class Place:
    """The ways to make one test function fail."""

    spots: tuple[Spot, ...]
    """The best spots, all of one rank and evident or not; empty if no constant is expected."""
    quotes: bytes
    """The quotes that the file uses most."""
    insert_at: int
    indent: bytes
    names: tuple[str, ...]
    """Names that an assertion added at the end can use."""
    values: tuple[object, ...]
    """Constants of the file."""
    flip: Spot | None = None
    """Expects the opposite of a truth value; only for functions that pass with the bug."""
    echo: Spot | None = None
    """Expects a constant that the function has elsewhere; only for those, too."""
    swapped: tuple[int, int] | None = None
    """Span of the value compared with the package's answer, if it is not a constant."""

    @property
    def rank(self) -> int:
        """Rank of its spots; the least is the best."""
        return self.spots[0].rank if self.spots else 3

    @property
    def evident(self) -> bool:
        """Whether the test itself seems to show the right value."""
        return any(spot.evident for spot in self.spots)

    @property
    def choices(self) -> int:
        """Number of edits of its best spot."""
        return max((len(spot.edits) for spot in self.spots), default=1)

    def spot(self, chance: random.Random, edits: int) -> Spot:
        """A random spot with at least `edits` edits, or as many as any has, in random order.

        Without spots, this is an added assertion that fails.
        """
        if not self.spots:
            return Spot((self._assertion(chance),))
        enough = min(edits, self.choices)
        spot = chance.choice([spot for spot in self.spots if len(spot.edits) >= enough])
        return replace(spot, edits=tuple(chance.sample(spot.edits, len(spot.edits))))

    def _assertion(self, chance: random.Random) -> Replacement:
        texts = [value for value in self.values if isinstance(value, str)]
        value = repr(_other(chance.choice(texts or ["value"]), chance))
        if self.quotes == b'"' and '"' not in value:
            value = f'"{value[1:-1]}"'
        if self.swapped:
            return Replacement(*self.swapped, value.encode())
        if self.names:
            line = f"assert {chance.choice(self.names)} == {value}"
        else:
            line = f"assert {chance.choice((1, 2, 3, 5, 10, 20))!r} == {value}"
        return Replacement(self.insert_at, self.insert_at, self.indent + line.encode() + b"\n")


def find_places(
    file: str,
    source: bytes,
    lines: Mapping[TestFunction, int] | None,
    statement: str = "",
    mixed: Collection[TestFunction] = (),
) -> dict[TestFunction, Place]:
    """All test functions of a module that can be made to fail.

    `lines` are those at which functions fail because of the bug (0 = unknown; None = irrelevant).
    The problem `statement` may show the right values. Of the `mixed` functions, some sets of
    parameters pass with the bug.

    Raises:
        SyntaxError, ValueError, RecursionError: the file cannot be parsed as Python.
    """
    odd_lines = b"\f" in source or b"\r" in source.replace(b"\r\n", b"")
    if len(source) > MAX_SOURCE_BYTES or odd_lines or not source.endswith(b"\n"):
        raise ValueError("too large, or its lines differ from those that ast counts")
    module = _Module(source, statement)
    functions = list(_functions(module.tree.body))
    several = Counter(name for name, _ in functions)
    found = {}
    for name, node in functions:
        called = module.used[node.name] > 0
        if several[name] > 1 or called or node.body[0].lineno <= node.lineno:
            continue
        test = TestFunction(file, name)
        if place := module.place(
            node, None if lines is None else lines.get(test), whole=test not in mixed
        ):
            found[test] = place
    return found


class _Module:
    """A parsed test module, with data that its functions share."""

    def __init__(self, source: bytes, statement: str) -> None:
        self.source = source
        self._statement = statement
        self.tree = parse_module(source.decode())
        # Of each line as `ast` counts lines, and of the end of the file.
        self._offsets = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
        self._quotes = b'"' if source.count(b'"') > source.count(b"'") else b"'"
        nodes = list(ast.walk(self.tree))
        self.used = Counter(map(last_name, nodes))
        self._values = tuple(
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and type(node.value) in (str, int)
            and 0 < len(str(node.value)) <= 40
        )
        self._words = frozenset(
            word for value in self._values for word in re.findall(r"[A-Za-z]{3,}", str(value))
        )
        self._names = tuple(
            node.name for node in self.tree.body if isinstance(node, Function | ast.ClassDef)
        )

    def place(self, node: Function, line: int | None, *, whole: bool) -> Place | None:
        """The place in this function; `line` = the line that fails with the bug.

        `whole`: with all sets of its parameters.
        """
        end = self._end(node)
        if end is None:
            return None
        spots = self._spots(node, line)
        side = None if spots else compared_at(node, line)
        if isinstance(side, ast.Name) and whole:
            spots = self._parameter_spots(node, side.id)
        return Place(
            spots=spots,
            quotes=self._quotes,
            insert_at=end[0],
            indent=end[1],
            names=_own_names(node) or self._names,
            values=self._values,
            flip=self._mimicry(node, truth=True) if line is None else None,
            echo=self._mimicry(node, truth=False) if line is None else None,
            swapped=None if side is None or spots else self._span(side),
        )

    def _mimicry(self, node: Function, *, truth: bool) -> Spot | None:
        for side in expected_alone(node):
            value = getattr(side, "value", ...)
            if truth:
                others = [repr(not value)] if isinstance(value, bool) else []
            else:  # truth values and None are in every test
                few = isinstance(value, bool) or value is None
                others = [] if few else constants_like(node, side)
            if others:
                edits = [Replacement(*self._span(side), other.encode()) for other in others]
                return Spot(tuple(edits))
        return None

    def _spots(self, node: Function, line: int | None) -> tuple[Spot, ...]:
        if line is None:
            constants = expected_constants(node)
        else:
            constants = constants_at(node, line) or constants_after(node, line)
        spots = [spot for constant in constants for spot in self._spots_of(constant, node)]
        if not spots and line is not None:
            for name in exceptions_at(node, line):
                stated = _occurs(name.id, self._statement)
                spots += self._made(name, other_exceptions(name.id), weak=True, stated=stated)
        best = min(((spot.rank, spot.evident) for spot in spots), default=None)
        return tuple(spot for spot in spots if (spot.rank, spot.evident) == best)

    def _parameter_spots(self, node: Function, name: str) -> tuple[Spot, ...]:
        """Other values of the argument that is compared with, in all sets of parameters at once.

        All sets move on by the same number of places in the order of the possible values: whether
        values of two sets are equal, or how far apart, does not tell the originals. That takes as
        many possible values in each set: of numbers the last digit changes, not the first.
        """
        constants = parameters_of(node, name)
        spans = [self._span(constant) for constant in constants]
        written = [self.source[start:end] for start, end in spans]
        others = [other_values(text, self._words) for text in written]
        if not spans or not all(others) or set(written) & set(_FEW):
            return ()
        alike = set.intersection(*({len(spot) for spot in spots} for spots in others))
        size = max(alike, default=0)
        rings = [
            _after(text, next((spot for spot in reversed(spots) if len(spot) == size), spots[0]))
            for text, spots in zip(written, others, strict=True)
        ]
        edits = []
        for texts in zip(*rings, strict=False):
            whole = [Replacement(*s, text) for s, text in zip(spans, texts, strict=True)]
            edits.append(merged(self.source, whole))
        stated = any(_occurs(str(constant.value), self._statement) for constant in constants)
        return (Spot(tuple(edits), stated=stated),)

    def _spots_of(self, expected: Expected, node: Function) -> list[Spot]:
        start, end = self._span(expected.node)
        written = self.source[start:end]
        texts = {written.decode(), str(expected.node.value)}
        stated = any(_occurs(text, self._statement) for text in texts)
        if expected.how == "equal":
            others = other_values(written, self._words)
            used = self._tokens(node)
            return [
                replace(spot, evident=_evident(written, spot, used))
                for spot in self._made(expected.node, others, stated=stated)
            ]
        others = other_texts(written, self._words, regex=expected.how == "pattern")
        return self._made(expected.node, others, weak=True, stated=stated)

    def _made(self, node: ast.expr, others: Sequence[Sequence[bytes]], **marks: bool) -> list[Spot]:
        span = self._span(node)
        return [Spot(tuple(Replacement(*span, text) for text in spot), **marks) for spot in others]

    def _tokens(self, node: Function) -> Counter[bytes]:
        """Words and numbers of the function, in lower case."""
        first, last = node.lineno, node.end_lineno or node.lineno
        return Counter(_tokens(self.source[self._offsets[first - 1] : self._offsets[last]]))

    def _span(self, node: ast.expr) -> tuple[int, int]:
        last, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._offsets[node.lineno - 1] + node.col_offset, self._offsets[last - 1] + end

    def _end(self, node: Function) -> tuple[int, bytes] | None:
        """Offset and indentation for one more statement; None = there is no place."""
        last = node.body[-1]
        if isinstance(last, ast.Return | ast.Raise | ast.Pass | ast.Continue | ast.Break):
            at = last.lineno
        else:
            at = (last.end_lineno or last.lineno) + 1
        line = self.source[self._offsets[last.lineno - 1] :]
        indent = line[: len(line) - len(line.lstrip(b" \t"))]
        if len(indent) != last.col_offset or at > len(self._offsets):
            return None  # several statements on one line
        return self._offsets[at - 1], indent


def _after(written: bytes, others: Sequence[bytes]) -> list[bytes]:
    """The others in order, those that follow `written` first."""
    return sorted(others, key=lambda other: (other < written, other))


def _evident(written: bytes, spot: Spot, used: Counter[bytes]) -> bool:
    """Whether a function with these tokens shows what a constant of it is in one of its spots."""
    if written in _FEW:
        return True
    own, kept = Counter(_tokens(written)), Counter(_tokens(spot.edits[0].text))
    return any(used[token] > own[token] for token in own - kept)


def _tokens(text: bytes) -> list[bytes]:
    return re.findall(rb"[a-z]+|\d+", text.lower())


def _occurs(text: str, statement: str) -> bool:
    """Whether the statement contains this text, not merely as part of a word or number."""
    if not text:
        return False
    before = r"(?<!\w)" if text[0].isalnum() else ""
    after = r"(?!\w)" if text[-1].isalnum() else ""
    return re.search(before + re.escape(text) + after, statement) is not None


def _own_names(node: Function) -> tuple[str, ...]:
    """The function's arguments, and the names it assigns."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    names = [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            names += [t.id for t in statement.targets if isinstance(t, ast.Name)]
    return tuple(names)


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}::")


def _other(text: str, chance: random.Random) -> str:
    """The text with one character changed."""
    places = [at for at, character in enumerate(text) if character.isalnum()]
    if not places:
        return text + chance.choice(string.ascii_lowercase)
    at = chance.choice(places)
    others = string.ascii_lowercase.replace(text[at].lower(), "")
    return text[:at] + chance.choice(others) + text[at + 1 :]


def other_values(literal: bytes, words: Collection[str]) -> list[list[bytes]]:
    """Spots of a constant: other constants with the same quotes, prefix, base and case.

    Words are replaced by others of `words`: an invented word would occur nowhere else.
    """
    text = literal.decode()
    value = _value(text)
    if value is None or isinstance(value, bool):
        return [[repr(v).encode() for v in ((None,) if value is not None else (True, False))]]
    spots = [_replaced(text, match, string.digits) for match in re.finditer(r"\d", text)]
    if isinstance(value, str | bytes):
        spots += [_replaced(text, match, _alike(match[0], words)) for match in _words(text)]
    return _kept(spots, value)


def other_texts(literal: bytes, words: Collection[str], *, regex: bool) -> list[list[bytes]]:
    """Spots of a text that is searched for in a message: texts that no honest message contains.

    Two letters of a word are changed, so that it is no longer a word, nor one of the file's
    `words`; an honest message might contain any real word. A `regex` that leaves choices has no
    spots.
    """
    text = literal.decode()
    value = _value(text)
    if not isinstance(value, str):
        return []
    if regex and _REGEX_CHOICES.search(re.sub(r"\\.|\.[*+]", "", value)):
        return []
    spots = []
    for match in _words(text):
        letters = [at for at, letter in enumerate(match[0]) if letter.lower() in _CONSONANTS]
        made = [_misspelt(match[0], letters[:2], turn) for turn in range(1, len(_CONSONANTS))]
        spots.append(_replaced(text, match, [word for word in made if word not in words]))
    if len(value) >= _MIN_DIGITS_TEXT and not any(spots):
        spots = [_replaced(text, match, string.digits) for match in re.finditer(r"\d", text)]
    return _kept(spots, value)


def other_exceptions(name: str) -> list[list[bytes]]:
    """Classes that a test may expect instead; no honest exception is an instance of both."""
    expected = getattr(builtins, name, None)
    others = [*_RARE_EXCEPTIONS, *(_NO_LOOKUPS if name in _LOOKUPS else ())]
    made = [other.encode() for other in others if other != name and not _related(other, expected)]
    return [made] if made else []


def _related(name: str, expected: object) -> bool:
    """Whether two builtin exceptions have more in common than being exceptions."""
    if not isinstance(expected, type):
        return False
    common = {*getattr(builtins, name).__mro__} & {*expected.__mro__}
    return bool(common - {Exception, BaseException, object}) or expected in common


def _alike(word: str, words: Collection[str]) -> list[str]:
    """Words of the same case, those of similar length first."""
    alike = [other for other in words if other != word and _case(other) == _case(word)]
    return sorted(alike, key=lambda other: (abs(len(other) - len(word)), other))[:_MAX_ALIKE]


def _words(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text))


def _replaced(text: str, match: re.Match[str], others: Collection[str]) -> list[str]:
    return [text[: match.start()] + o + text[match.end() :] for o in others if o != match[0]]


def _kept(spots: list[list[str]], value: object) -> list[list[bytes]]:
    made = [[each.encode() for each in spot if _differs(each, value)] for spot in spots]
    return [spot for spot in made if spot]


def _misspelt(word: str, letters: list[int], turn: int) -> str:
    """The word with two consonants replaced by others; unchanged if it has fewer than two."""
    if len(letters) < 2:
        return word
    made = list(word)
    for at in letters:
        consonants = _CONSONANTS if word[at].islower() else _CONSONANTS.upper()
        made[at] = consonants[(consonants.index(word[at]) + turn) % len(consonants)]
    return "".join(made)


def _case(word: str) -> str:
    return "lower" if word.islower() else "upper" if word.isupper() else "mixed"


def _value(text: str) -> object:
    """The value of a literal; Ellipsis for anything else."""
    try:
        return literal_value(text)
    except (ValueError, SyntaxError):
        return ...


def _differs(text: str, value: object) -> bool:
    """Whether it is another value of this type; not with a leading zero, which nobody writes."""
    other = _value(text)
    return type(other) is type(value) and other != value and not re.match(r"0[\d_]", text)
