"""What a failing test shows, in a sentence: function, kind of failure, values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_VALUE_CHARS = 80
_WINDOW_CHARS = 24
"""Shown of a long text before and after the first difference."""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """What the run reported of one failing test."""

    test_id: str
    message: str
    """The exception as pytest reports it: type, text and, below, how values came about."""
    frames: tuple[tuple[str, int, str], ...] = ()
    """(path in the repository, line, function) of the traceback, outermost first."""


@dataclass(frozen=True, slots=True)
class Library:
    """What the statement may know of the package."""

    label: str
    """Name and version."""
    names: frozenset[str]
    """Its public functions, methods and classes."""
    tests: Mapping[str, str]
    """Source of the test files by path, to see which function a test calls."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One observation."""

    function: str | None
    headline: str
    text: str
    """One sentence or two; contains the values."""
    plain: str
    """The same without values."""

    @property
    def concrete(self) -> bool:
        """Whether it says more than that something is wrong."""
        return self.text != "" and (self.text != self.plain or "`, raised in" in self.plain)


def public_names(sources: Iterable[bytes]) -> frozenset[str]:
    """Public functions, methods and classes that the files define."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, definitions) and not node.name.startswith("_")
    )


def describe(failure: FailedCheck, library: Library) -> Symptom:
    """What this failure shows."""
    head = failure.message.strip().partition("\n")[0]
    if "DID NOT RAISE" in head or head.endswith("not raised"):
        return _missing_error(head, _function_under_test(failure, library))
    if (error := _exception(head)) is not None:
        return _unexpected(error, head, failure, library)
    function = _function_under_test(failure, library)
    plain = f"{_subject(function)} gives a wrong result."
    text = _wrong_value(function, failure.message) or plain
    return Symptom(function, "wrong result", text, plain)


def _subject(function: str | None) -> str:
    return f"`{function}`" if function else "The library"


# --- exceptions ----------------------------------------------------------------------------


def _missing_error(head: str, function: str | None) -> Symptom:
    plain = f"{_subject(function)} accepts something that it has to refuse"
    names = re.findall(r"[A-Za-z_]\w*", head)
    skip = {"DID", "NOT", "RAISE", "Failed", "AssertionError"}
    wanted = next((n for n in reversed(names) if n not in skip and n[0].isupper()), None)
    text = f"{plain}: `{wanted}` should be raised, and is not." if wanted else f"{plain}."
    return Symptom(function, "no error where one is due", text, f"{plain}.")


def _exception(head: str) -> str | None:
    """The type of an exception that is no failed assertion."""
    match = re.match(r"([A-Za-z_][\w.]*)(?::|$)", head)
    name = match.group(1).rpartition(".")[2] if match else ""
    if not name or name in {"AssertionError", "Failed"} or not name[0].isupper():
        return None
    return name


def _unexpected(error: str, head: str, failure: FailedCheck, library: Library) -> Symptom:
    inside = [frame for frame in failure.frames if frame[0] not in library.tests]
    inside = [frame for frame in inside if not frame[0].startswith(("/", ".."))]
    entry = inside[0][2] if inside and inside[0][2] in library.names else None
    function = entry or _function_under_test(failure, library)
    where = f", raised in `{inside[-1][2]}` of `{inside[-1][0]}`" if inside else ""
    plain = f"{_subject(function)} fails with an unexpected `{error}`{where}."
    detail = head.partition(":")[2].strip()
    short = detail and len(detail) <= MAX_VALUE_CHARS and "0x" not in detail
    text = f"{plain} The error reads: {detail}" if short else plain
    return Symptom(function, f"unexpected {error}", text, plain)


# --- values --------------------------------------------------------------------------------


def _wrong_value(function: str | None, message: str) -> str | None:
    """What a failed assertion tells about values; None if that is nothing short."""
    head = re.sub(r"^AssertionError: ?", "", message.strip().partition("\n")[0])
    subject = _subject(function)
    origin = _origin(message)
    own = origin if origin and origin.function == function else None
    pair = _split(head)
    if pair is None:
        return _part(subject, message) or _truth(subject, head, own)
    left, operator, right = pair
    if operator not in {"==", "!="}:
        return _relation(subject, *pair)
    if not head.startswith("assert "):
        return _should_equal(subject, left, right)
    if operator == "!=":
        return f"With {subject}, `{left}` comes out, which is exactly what must not."
    if origin and origin.value == right != left:
        left, right = right, left  # pytest shows which side was computed
    return _instead(subject, left, right, own)


def _should_equal(subject: str, left: str, right: str) -> str | None:
    if max(len(left), len(right)) > MAX_VALUE_CHARS:
        return None
    return f"{subject} gives a wrong result: `{left}` and `{right}` should be the same."


def _instead(subject: str, left: str, right: str, origin: _Origin | None) -> str | None:
    """The left comes out, the right should; `origin` is the call that gave the left, if known."""
    seen = f"With {subject}, a result is"
    if origin and origin.value == left:
        seen = f"{subject}{_inputs(origin)} gives"
    if max(len(left), len(right)) > MAX_VALUE_CHARS:
        left, right = _window(left, right)
        seen += " a text with"
    return f"{seen} `{left}`, where `{right}` is right." if left and right else None


def _split(head: str) -> tuple[str, str, str] | None:
    """(left, operator, right) of a failed comparison of two plain literals."""
    if not head.startswith("assert "):  # unittest
        for match in re.finditer(r" != ", head):
            left, right = head[: match.start()], head[match.end() :].partition(" : ")[0]
            if _literal(left) and _literal(right):
                return left, "!=", right
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
    }
    relation = words.get(operator, f"`{left} {operator} {right}` should hold")
    return f"{subject} gives a wrong result: {relation}."


def _truth(subject: str, head: str, origin: _Origin | None) -> str | None:
    """`assert f(x)` and `assert not f(x)`."""
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
"""How pytest shows where two large values differ."""


def _part(subject: str, message: str) -> str | None:
    """The first part of a large value that differs."""
    for pattern in _PARTS:
        for match in pattern.finditer(message):
            left, right = match["left"].strip(), match["right"].strip()
            if "`" not in left + right and max(len(left), len(right)) <= MAX_VALUE_CHARS:
                return (
                    f"With {subject}, a part of the result is `{left}`, where `{right}` is right."
                )
    return None


def _literal(text: str) -> bool:
    if not text or "`" in text or "\n" in text:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _window(left: str, right: str) -> tuple[str, str]:
    """The surroundings of the first difference of two long texts; empty if they are no texts."""
    if left[0] not in "'\"" or right[0] not in "'\"":
        return "", ""
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    start = max(1, first - _WINDOW_CHARS)
    return left[start : first + _WINDOW_CHARS], right[start : first + _WINDOW_CHARS]


@dataclass(frozen=True, slots=True)
class _Origin:
    """A call that pytest says a value came from."""

    value: str
    function: str
    arguments: tuple[str, ...]
    """Empty unless all are plain literals."""


def _origin(message: str) -> _Origin | None:
    for line in message.splitlines():
        match = re.match(r" *\+ +where (.+?) = (?:<(?:function|bound method) )?([\w.]+)", line)
        if match and line.endswith(")"):
            arguments = _arguments(line[match.end() :])
            return _Origin(match.group(1), match.group(2).rpartition(".")[2], arguments)
    return None


def _arguments(rest: str) -> tuple[str, ...]:
    """The arguments at the end of a call that pytest shows, if they are short literals."""
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


def _inputs(origin: _Origin) -> str:
    shown = ", ".join(f"`{argument}`" for argument in origin.arguments)
    return f", for {shown}," if shown else ""


# --- which function ------------------------------------------------------------------------


def _function_under_test(failure: FailedCheck, library: Library) -> str | None:
    """The library's function that the failing line of the test calls, else a near guess."""
    origin = _origin(failure.message)
    if origin and origin.function in library.names:
        return origin.function
    path, *names = re.sub(r"\[.*\]$", "", failure.test_id, flags=re.S).split("::")
    lines = [line for frame_path, line, _ in failure.frames if frame_path == path]
    body = _test_body(library.tests.get(path, ""), names)
    failing = [s for s in body if lines and s.lineno <= lines[-1] <= (s.end_lineno or 0)]
    words = names[-1].lower().removeprefix("test").strip("_") if names else ""
    near = [n for n in library.names if len(n) > 3 and n.lower() in words]
    for statement in reversed(failing):
        if name := _called(statement, library.names):
            return name
    if near:
        return max(near, key=lambda n: (len(n), n))
    return next((n for s in reversed(body) if (n := _called(s, library.names))), None)


def _test_body(source: str, names: Sequence[str]) -> list[ast.stmt]:
    """All statements of a test function, outer before inner."""
    node: ast.AST = ast.parse(source)
    for name in names:
        found = [c for c in ast.iter_child_nodes(node) if getattr(c, "name", None) == name]
        if not found:
            return []
        node = found[-1]
    return [n for n in ast.walk(node) if isinstance(n, ast.stmt) and n is not node]


def _called(statement: ast.stmt, known: frozenset[str]) -> str | None:
    """The outermost call of a known function that is not as common as `str.join`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "id", None) or getattr(function, "attr", None)
            common = name is not None and any(hasattr(t, name) for t in (str, list, dict, set))
            if name in known and (isinstance(function, ast.Name) or not common):
                return str(name)
    return None
