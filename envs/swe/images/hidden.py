"""Rows whose tests are named without their files.

Of most, the files are known (see `node_ids`). R2E-Gym's tests are a directory of the image, and
which of them the bug makes fail is in no column: they run once per host on the tree with the bug.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from envs.swe.grading.suite import run_tests
from envs.swe.images import r2e
from envs.swe.images.commands import parse_command
from envs.swe.images.definitions import definitions, parsed
from envs.swe.images.node_ids import with_node_ids
from envs.swe.images.notes import ImageNote
from envs.swe.images.workplace import ImagePlace
from envs.swe.item import Item
from envs.swe.paths import file_of
from envs.swe.workspace import Pinned
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext

RULES = "1"


def names_tests(item: Item) -> bool:
    """Whether the row's tests still have to be found in its image."""
    return all(file_of(test) == r2e.TESTS for test in item.test_ids)


async def with_files(item: Item, pinned: Pinned) -> Item:
    """The row with node ids, or as it is if its tests have no files yet."""
    if pinned.image is None or names_tests(item):
        return item
    return await with_node_ids(item, pinned.image.facts, pinned.graded)


async def known_row(item: Item, pinned: Pinned) -> Item | None:
    """The row with node ids in FAIL_TO_PASS and PASS_TO_PASS; None: not measured on this host yet.

    Raises:
        EnvBug: a name is of no test of the image.
    """
    if pinned.image is None or not names_tests(item):
        return await with_files(item, pinned)
    named = await _named(item, pinned, pinned.image)
    before = await _note(named, pinned.image).read()
    return None if before is None else _split(named, frozenset(before))


async def measured_row(item: Item, pinned: Pinned, context: SlotContext) -> Item:
    """The same, measured now unless it is known. The slot is renewed.

    Raises:
        EnvBug: a name is of no test of the image, or all pass with the bug.
        SandboxError: they could not be run.
    """
    known = await known_row(item, pinned)
    if known is not None or pinned.image is None:
        return known or item
    named = await _named(item, pinned, pinned.image)
    await context.renew()
    run = await run_tests(
        context,
        pinned.repository,
        pinned.graded,
        named.environment,
        named.test_files,
        named.test_timeout_s,
        image=pinned.image,
    )
    if not run.complete and not run.timed_out:
        raise SandboxError(f"the image's tests could not be run: {run.output[-500:]}")
    passing = frozenset(test for test in named.test_ids if run.outcome(test) == "passed")
    await _note(named, pinned.image).write(sorted(passing))
    return _split(named, passing)


def _split(item: Item, passing: frozenset[str]) -> Item:
    failing = tuple(test for test in item.test_ids if test not in passing)
    if not failing:
        raise EnvBug("expected_output_json: all its tests pass with the bug, too")
    kept = tuple(test for test in item.test_ids if test in passing)
    return item.model_copy(update={"FAIL_TO_PASS": failing, "PASS_TO_PASS": kept})


async def _named(item: Item, pinned: Pinned, image: ImagePlace) -> Item:
    """The row with node ids in FAIL_TO_PASS, and the settings of its own test command."""
    prefix = f"{r2e.TESTS}/"
    paths = [path for path in await pinned.repository.files(pinned.graded) if path.endswith(".py")]
    sources = {
        path: await pinned.repository.read(pinned.graded, path)
        for path in sorted(paths)
        if path.startswith(prefix)
    }
    modules = await asyncio.to_thread(_modules, sources)
    found = [test for name in item.FAIL_TO_PASS for test in _find(name, modules)]
    try:
        command = parse_command(image.facts.command)
    except ValueError as error:
        raise EnvBug(f"{image.source.reference}: run_tests.sh: {error}") from error
    if command.runner != image.source.runner:
        raise EnvBug(f"source.runner: run_tests.sh runs {command.runner}")
    own = item.environment
    settings = own.model_copy(
        update={
            "pytest_args": own.pytest_args or command.arguments,
            "env": {**command.env, **own.env},
        }
    )
    return item.model_copy(
        update={"FAIL_TO_PASS": tuple(dict.fromkeys(found)), "environment": settings}
    )


@dataclass(frozen=True, slots=True)
class _Names:
    functions: frozenset[str]
    classes: frozenset[str]


def _modules(sources: Mapping[str, bytes]) -> dict[str, _Names]:
    """The names that each test module defines; modules that cannot be parsed are left out."""
    found = {}
    for path, tree in parsed(sources):
        functions, classes = set[str](), set[str]()
        for name, node in definitions(tree.body):
            (classes if isinstance(node, ast.ClassDef) else functions).add(name)
        found[path] = _Names(frozenset(functions), frozenset(classes))
    return found


def _find(name: str, modules: Mapping[str, _Names]) -> list[str]:
    """The node ids that a name stands for: in every file that defines it.

    Raises:
        EnvBug: there is none.
    """
    rest = name.partition("::")[2]
    function = rest.partition("[")[0]
    files = [path for path, names in modules.items() if function in names.functions]
    if not files:  # inherited by a class of the file
        owner = function.rpartition("::")[0]
        files = [path for path, names in modules.items() if owner in names.classes]
    if not files:
        raise EnvBug(
            f"expected_output_json: no file of the image's {r2e.TESTS} has a test {function!r}"
        )
    return [f"{path}::{rest}" for path in files]


def _note(item: Item, image: ImagePlace) -> ImageNote:
    """Which of the tests pass with the bug."""
    decides = [RULES, item.test_ids, item.patch, item.environment.model_dump(mode="json")]
    return ImageNote(image.facts, "passing", decides)
