"""Ids of unittest, Django and SymPy as node ids: `file::Class::test_x`.

unittest names a test `test_x (module.Class)`, from Python 3.11 on `test_x (module.Class.test_x)`;
datasets know those with a docstring by its first line alone. Which of them a row has depends on
the test and on its image's Python. SymPy names the function and nothing else. The files are those
of the row's test patch.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envs.swe.grading.expectations import last_name
from envs.swe.images.definitions import definitions, parsed
from envs.swe.images.facts import ImageFacts
from envs.swe.images.notes import ImageNote
from envs.swe.images.runners import is_node_id
from envs.swe.images.source import ImageSource
from envs.swe.item import Item
from envs.swe.paths import file_of
from envs.swe.repository import Repository
from hermes_queue.errors import EnvBug

RULES = "1"
"""Rises when the same id becomes another node id."""
MAX_FILES = 200
_VERBOSE = re.compile(r"(\w+) \(([\w.]+)\)")
_MARKS = frozenset(("XFAIL", "SKIP", "slow", "tooslow"))
"""Decorators of SymPy's tests that never print "ok"."""


async def with_node_ids(item: Item, facts: ImageFacts, graded: str) -> Item:
    """The row with node ids; `graded` is the tree that holds its tests.

    A name that several tests have becomes all their ids. A description that no method of the test
    files has is kept, as `file::description`: a class of another file may have it, and the run says
    so. Rows of pytest, and those with a directory of hidden tests (see `hidden`), are as they are.

    Raises:
        EnvBug: a name is of no test.
    """
    source = item.source
    if not isinstance(source, ImageSource) or source.runner == "pytest" or source.tests is not None:
        return item
    if all(map(is_node_id, item.test_ids)):
        return item
    decides = [RULES, source.runner, item.FAIL_TO_PASS, item.PASS_TO_PASS, graded, item.test_patch]
    note = ImageNote(facts, "node_ids", decides)
    if (kept := await note.read()) is None:
        kept = tuple(await _find(item, source, facts.repository, graded))
        await note.write(kept)
    middle = kept.index("")
    return item.model_copy(
        update={"FAIL_TO_PASS": kept[:middle], "PASS_TO_PASS": kept[middle + 1 :]}
    )


async def _find(
    item: Item, source: ImageSource, repository: Repository, graded: str
) -> Iterator[str]:
    """The node ids of FAIL_TO_PASS, an empty text, and those of PASS_TO_PASS."""
    files = await repository.files(graded)
    names = _Names(source.runner, files)
    wanted = {path for path in item.patched_tests if path in files}
    wanted |= {path for test in item.test_ids if (path := names.file_of_verbose(test))}
    if not wanted:
        raise EnvBug("test_patch: it has no test file, and the ids of the tests name none")
    if len(wanted) > MAX_FILES:
        raise EnvBug(f"FAIL_TO_PASS, PASS_TO_PASS: they are of more than {MAX_FILES} files")
    sources = {path: await repository.read(graded, path) for path in sorted(wanted)}
    modules = await asyncio.to_thread(_modules, sources)
    found = []
    for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        ids = [made for test in getattr(item, column) for made in names.find(test, modules, column)]
        found.append(list(dict.fromkeys(ids)))
    first, second = found
    known = frozenset(first)
    return iter([*first, "", *(test for test in second if test not in known)])


@dataclass(frozen=True, slots=True)
class _Module:
    """What a test module defines."""

    functions: frozenset[str]
    """Names of its functions and methods, as in node ids."""
    marked: frozenset[str]
    """Those that SymPy expects to fail, or does not run."""
    described: Mapping[str, tuple[str, ...]]
    """First line of a docstring -> methods."""
    bases: frozenset[str]
    """Names of classes from which others inherit."""

    @property
    def has_tests(self) -> bool:
        """Whether a function or method of it is named like a test."""
        return any(name.rpartition("::")[2].startswith("test") for name in self.functions)


class _Names:
    """The names of tests in the terms of one program."""

    def __init__(self, runner: str, files: frozenset[str]) -> None:
        self._runner = runner
        self._files = files

    def find(self, test: str, modules: Mapping[str, _Module], column: str) -> list[str]:
        """The node ids of a name. Raises EnvBug."""
        if is_node_id(test) and file_of(test) in self._files:
            return [test]
        found = self._sympy if self._runner == "sympy" else self._unittest
        if ids := found(test, modules):
            return ids
        raise EnvBug(f"{column}: no file of test_patch has a test {test[:200]!r}")

    def file_of_verbose(self, test: str) -> str | None:
        """The file of `test_x (module.Class)`; None if the name is no such name."""
        found = self._verbose(test)
        return found[0] if found else None

    def _sympy(self, test: str, modules: Mapping[str, _Module]) -> list[str]:
        having = [path for path, module in modules.items() if test in module.functions]
        plain = [path for path in having if test not in modules[path].marked]
        return [f"{path}::{test}" for path in plain or having]

    def _unittest(self, test: str, modules: Mapping[str, _Module]) -> list[str]:
        if found := self._verbose(test):
            return ["::".join(found)]
        text = test.strip()
        owners = [
            (path, name)
            for path, module in modules.items()
            for name in module.described.get(text, ())
        ]
        if len(owners) == 1:
            [(path, name)] = owners
            if name.split("::")[-2] not in modules[path].bases:
                return [f"{path}::{name}"]
        # Other files of the patch, models for instance, must stay in the agent's tree.
        testing = [path for path, module in modules.items() if module.has_tests]
        paths = [path for path, _ in owners] or testing or list(modules)
        return [f"{paths[0]}::{text}"]

    def _verbose(self, test: str) -> tuple[str, str, str] | None:
        """File, class and method."""
        match = _VERBOSE.fullmatch(test.strip())
        if match is None:
            return None
        method, parts = match[1], match[2].split(".")
        if len(parts) > 2 and parts[-1] == method:
            parts.pop()
        for count in range(len(parts) - 1, 0, -1):
            module = "/".join(parts[:count])
            for path in (f"{module}.py", f"{module}/__init__.py"):
                if (file := self._below_a_root(path)) is not None:
                    return file, "::".join(parts[count:]), method
        return None

    def _below_a_root(self, path: str) -> str | None:
        """The file that is imported as this; Django's tests are imported from their directory."""
        if self._runner == "django":
            return next((each for each in (f"tests/{path}", path) if each in self._files), None)
        if path in self._files:
            return path
        found = [each for each in self._files if each.endswith(f"/{path}")]
        return min(found, key=lambda each: (each.count("/"), each), default=None)


def _modules(sources: Mapping[str, bytes]) -> dict[str, _Module]:
    """What each module defines; those that cannot be parsed define nothing."""
    found = {path: _Module(frozenset(), frozenset(), {}, frozenset()) for path in sources}
    return found | {path: _module(tree) for path, tree in parsed(sources)}


def _module(tree: ast.Module) -> _Module:
    functions, marked, described = set(), set(), dict[str, tuple[str, ...]]()
    for name, node in definitions(tree.body):
        if isinstance(node, ast.ClassDef):
            continue
        functions.add(name)
        called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
        if _MARKS & set(map(last_name, called)):
            marked.add(name)
        first = (ast.get_docstring(node) or "").strip().partition("\n")[0].strip()
        if first and "::" in name:
            described[first] = (*described.get(first, ()), name)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = frozenset(last_name(base) for node in classes for base in node.bases)
    return _Module(frozenset(functions), frozenset(marked), described, bases)
