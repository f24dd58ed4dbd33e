"""Values that a failed assertion reports, in a sentence."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

MAX_VALUE_CHARS = 80
_WINDOW_CHARS = 24
"""Characters of a long text shown before and after the first difference."""


def wrong_value(function: str | None, message: str, observed: int | None) -> str | None:
    """A sentence about the values of a failed assertion; None if they are too long or missing.

    `observed` is the side of the comparison that was computed: 0, 1, or None if unknown.
    """
    head = re.sub(r"^AssertionError: ?", "", message.strip().partition("\n")[0])
    subject = f"`{function}`" if function else "The library"
    origin = find_origin(message)
    own = origin if origin and origin.function == function else None
    pair = _split(head)
    if pair is None:
        return _part(subject, message, observed) or _truth(subject, head, own)
    left, operator, right = pair
    if operator != "==":
        return _relation(subject, *pair)
    if origin and left != right and origin.value in {left, right}:
        observed = int(origin.value == right)  # pytest shows which side was computed
    if max(len(left), len(right)) > MAX_VALUE_CHARS:
        left, right = _window(left, right)
    if not left or not right:
        return None
    if own and own.value in {left, right}:
        seen, expected = (right, left) if observed else (left, right)
        return f"{subject}{_inputs(own)} gives `{seen}`, where `{expected}` is right."
    return _differs(subject, "result", (left, right), observed)


def _differs(subject: str, what: str, sides: tuple[str, str], observed: int | None) -> str:
    if observed is None:
        return f"{subject} gives a wrong {what}: `{sides[0]}` and `{sides[1]}` should be the same."
    return (
        f"With {subject}, a {what} is `{sides[observed]}`, where `{sides[1 - observed]}` is right."
    )


def _split(head: str) -> tuple[str, str, str] | None:
    """(left, operator, right) of a failed comparison of two plain literals."""
    if not head.startswith("assert "):  # unittest
        for match in re.finditer(r" != ", head):
            left, right = head[: match.start()], head[match.end() :].partition(" : ")[0]
            if _literal(left) and _literal(right):
                return left, "==", right
        return None
    expression = head.removeprefix("assert ")
    for match in re.finditer(r" (==|!=|not in|in|is not|is|<=|>=|<|>) ", expression):
        left, right = expression[: match.start()], expression[match.end() :]
        if _literal(left) and _literal(right):
            return left, match.group(1), right
    return None


def _relation(subject: str, left: str, operator: str, right: str) -> str | None:
    if max(len(left), len(right)) > MAX_VALUE_CHARS:
        return None
    words = {
        "in": f"`{left}` should be part of `{right}`",
        "not in": f"`{left}` should not be part of `{right}`",
        "is": f"`{left}` is seen where `{right}` is right",
        "is not": f"`{left}` is not what should come out",
        "!=": f"`{left}` is exactly what must not come out",
    }
    relation = words.get(operator, f"`{left} {operator} {right}` should hold")
    return f"{subject} gives a wrong result: {relation}."


def _truth(subject: str, head: str, origin: Origin | None) -> str | None:
    """A sentence for `assert f(x)` and `assert not f(x)`."""
    match = re.fullmatch(r"assert (not )?(\S{1,60})", head)
    if not match or not origin or origin.value != match.group(2):
        return None
    right = "nothing of the kind" if match.group(1) else "a true value"
    return f"{subject}{_inputs(origin)} gives `{origin.value}`, where {right} is right."


_PARTS = (
    re.compile(r"^ *At index \d+ diff: (?P<left>.+) != (?P<right>.+)$", re.M),
    re.compile(r"^ *(?P<left>\{.+\}) != (?P<right>\{.+\})$", re.M),
    re.compile(r"^ *- (?P<right>.+)\n(?: *\? .+\n)? *\+ (?!where )(?P<left>.+)$", re.M),
)
"""Patterns of the differing parts of two large values in pytest's output."""


def _part(subject: str, message: str, observed: int | None) -> str | None:
    """The first differing part of a large value."""
    for pattern in _PARTS:
        for match in pattern.finditer(message):
            sides = match["left"].strip(), match["right"].strip()
            if "`" not in "".join(sides) and max(map(len, sides)) <= MAX_VALUE_CHARS:
                return _differs(subject, "part of the result", sides, observed)
    return None


def _literal(text: str) -> bool:
    if not text or "`" in text or "\n" in text:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _window(left: str, right: str) -> tuple[str, str]:
    """The text around the first difference of two long strings; empty if they are not strings."""
    if left[0] not in "'\"" or right[0] not in "'\"":
        return "", ""
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    start = max(1, first - _WINDOW_CHARS)
    return left[start : first + _WINDOW_CHARS], right[start : first + _WINDOW_CHARS]


@dataclass(frozen=True, slots=True)
class Origin:
    """The call that a value came from, according to pytest."""

    value: str
    function: str
    arguments: tuple[str, ...]
    """Empty unless all are plain literals."""


def find_origin(message: str) -> Origin | None:
    """The first call in pytest's explanation of a failed assertion."""
    for line in message.splitlines():
        match = re.match(r" *\+ +where (.+?) = (?:<(?:function|bound method) )?([\w.]+)", line)
        if match and line.endswith(")"):
            arguments = _arguments(line[match.end() :])
            return Origin(match.group(1), match.group(2).rpartition(".")[2], arguments)
    return None


def _arguments(rest: str) -> tuple[str, ...]:
    """The arguments at the end of a call in pytest's output, if they are short literals."""
    for match in re.finditer(r"\(", rest):
        try:
            call = ast.parse("f" + rest[match.start() :], mode="eval").body
        except SyntaxError:
            continue
        if isinstance(call, ast.Call) and not call.keywords:
            texts = tuple(ast.unparse(argument) for argument in call.args)
            short = all(_literal(text) and len(text) <= MAX_VALUE_CHARS for text in texts)
            return texts if short else ()
    return ()


def _inputs(origin: Origin) -> str:
    values = ", ".join(f"`{argument}`" for argument in origin.arguments)
    return f", for {values}," if values else ""
