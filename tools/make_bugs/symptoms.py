"""The symptom of a failing test in a sentence: function, kind of failure, values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tools.make_bugs.values import MAX_VALUE_CHARS, find_origin, wrong_value


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """The run's report of one failing test."""

    test_id: str
    message: str
    """The exception as pytest reports it: type, text and, below, the origin of the values."""
    frames: tuple[tuple[str, int, str], ...] = ()
    """(path in the repository, line, function) of the traceback, outermost first."""

    @property
    def function_id(self) -> str:
        """The test's id without parameters."""
        return re.sub(r"\[.*\]$", "", self.test_id, flags=re.S)


@dataclass(frozen=True, slots=True)
class Library:
    """Facts about the package that the statement may use."""

    label: str
    """Name and version."""
    names: frozenset[str]
    """Its public functions, methods and classes."""
    tests: Mapping[str, str]
    """Source of the test files by path, to find out which function a test calls."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One observation."""

    function: str | None
    headline: str
    text: str
    """One or two sentences, including the values."""
    plain: str
    """The same without values."""

    @property
    def concrete(self) -> bool:
        """Whether the text is more specific than "something is wrong"."""
        return self.text != "" and (self.text != self.plain or "`, raised in" in self.plain)


def public_names(sources: Iterable[bytes]) -> frozenset[str]:
    """Public functions, methods and classes defined in the files."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, definitions) and not node.name.startswith("_")
    )


def describe(failure: FailedCheck, library: Library) -> Symptom:
    """The symptom of a failure."""
    head = failure.message.strip().partition("\n")[0]
    if "DID NOT RAISE" in head or head.endswith("not raised"):
        return _missing_error(head, _function_under_test(failure, library))
    if (error := _exception(head)) is not None:
        return _unexpected(error, head, failure, library)
    function = _function_under_test(failure, library)
    plain = f"{_subject(function)} gives a wrong result."
    text = wrong_value(function, failure.message, _observed(failure, library)) or plain
    return Symptom(function, "wrong result", text, plain)


def _subject(function: str | None) -> str:
    return f"`{function}`" if function else "The library"


def _missing_error(head: str, function: str | None) -> Symptom:
    plain = f"{_subject(function)} accepts something that it has to refuse"
    names = re.findall(r"[A-Za-z_]\w*", head)
    skip = {"DID", "NOT", "RAISE", "Failed", "AssertionError"}
    error = next((n for n in reversed(names) if n not in skip and n[0].isupper()), None)
    text = f"{plain}: `{error}` should be raised, and is not." if error else f"{plain}."
    return Symptom(function, "no error where one is due", text, f"{plain}.")


def _exception(head: str) -> str | None:
    """The type of an exception other than a failed assertion; None for an assertion."""
    match = re.match(r"([A-Za-z_][\w.]*)(?::|$)", head)
    full = match.group(1) if match else ""
    name = full.rpartition(".")[2]
    if not name or name in {"AssertionError", "Failed"}:
        return None
    if not name[0].isupper():  # re.error
        return full if "." in full else None
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


def _function_under_test(failure: FailedCheck, library: Library) -> str | None:
    """The library's function that the failing line of the test calls, or a good guess."""
    origin = find_origin(failure.message)
    if origin and origin.function in library.names:
        return origin.function
    body, failing = _statements(failure, library)
    for statement in reversed(failing):
        if name := _called(statement, library.names):
            return name
    words = failure.function_id.rpartition("::")[2].lower().removeprefix("test").strip("_")
    near = [n for n in library.names if len(n) > 3 and n.lower() in words]
    if near:
        return max(near, key=lambda n: (len(n), n))
    return next((n for s in reversed(body) if (n := _called(s, library.names))), None)


def _observed(failure: FailedCheck, library: Library) -> int | None:
    """The side of the failing comparison that was computed; None if unknown."""
    _, failing = _statements(failure, library)
    match failing[-1] if failing else None:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            sides = left, right
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[left, right, *_])) if (
            name.endswith("Equal")
        ):
            sides = left, right
        case _:
            return None
    for computing in (ast.Name | ast.Call, ast.Call):
        computed = [any(isinstance(n, computing) for n in ast.walk(side)) for side in sides]
        if computed[0] != computed[1]:
            return int(computed[1])
    return None


def _statements(failure: FailedCheck, library: Library) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """(statements of the test, those running when it failed), outer before inner."""
    path, *names = failure.function_id.split("::")
    lines = [line for frame_path, line, _ in failure.frames if frame_path == path]
    body = _test_body(library.tests.get(path, ""), names)
    return body, [s for s in body if lines and s.lineno <= lines[-1] <= (s.end_lineno or 0)]


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
    """The outermost call of a known function whose name is not as common as `str.join`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "id", None) or getattr(function, "attr", None)
            common = name is not None and any(hasattr(t, name) for t in (str, list, dict, set))
            if name in known and (isinstance(function, ast.Name) or not common):
                return str(name)
    return None
