"""What a producer finds out about a task before it is enqueued: the folder itself is read."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hermes_plugins.harbor import cache, tree
from hermes_plugins.harbor.evaluations import is_evaluation
from hermes_plugins.harbor.item import ArchivedTask, HarborItem
from hermes_plugins.harbor.shapes.known import as_harbor
from hermes_plugins.harbor.sources.rows import archive_of
from hermes_plugins.harbor.steps.folders import views
from hermes_plugins.harbor.task import GradingMode, TaskFolder
from hermes_plugins.harbor.validation.measured import ALL_MODES
from hermes_queue.errors import EnvBug, EnvInfraError, InputError

OVERHEAD_S = 600.0
"""For making boxes and the control, beside the tests themselves."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A task as it will be enqueued."""

    item: dict[str, Any]
    agent_timeout_s: float | None
    """Of all steps together; None if one has no limit."""
    verifier_timeout_s: float
    """The longest of all steps."""
    unsupported: str | None
    """Why it cannot run anywhere; None if nothing is known."""
    has_solution: bool
    modes: tuple[GradingMode, ...]
    """Grading modes that apply, from strict to lax."""
    steps: int = 1


def inspect(row: dict[str, Any], *, embed: bool) -> Inspected:
    """Read the task of a row in the form of `HarborItem`.

    A folder that is no whole task comes back as `unsupported`: others of its dataset may be.

    Raises:
        InputError: the row cannot be read, or its archive or repository holds no task.
    """
    try:
        item = HarborItem.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the row"
        raise InputError(f"{where}: {first['msg']}") from error
    try:
        if isinstance(item.task, str):
            try:
                return _inspected(item, Path(item.task), embed=embed)
            except EnvBug as error:
                return Inspected(item.model_dump(mode="json"), None, 0.0, str(error), False, ())
        if isinstance(item.task, ArchivedTask):
            with tempfile.TemporaryDirectory() as scratch:
                folder = cache.unpack(item.task.archive, Path(scratch) / "task")
                return _inspected(item, folder)
        folder = asyncio.run(cache.load(item)).path
        return _inspected(item, folder)
    except (EnvBug, EnvInfraError) as error:
        raise InputError(f"{item.instance_id}: {error}") from error


def _inspected(item: HarborItem, path: Path, *, embed: bool = False) -> Inspected:
    tree.entries(path)  # before anything in it is read
    with as_harbor(path) as folder:
        return _of(item, folder, embed=embed)


def _of(item: HarborItem, path: Path, *, embed: bool) -> Inspected:
    found = tree.entries(path)
    digest = tree.digest(path, found)
    if item.digest not in ("", digest):
        raise InputError(
            f"{item.instance_id}: digest: the row has {item.digest}, the folder {digest}; make the "
            "row again if you trust the folder"
        )
    task = TaskFolder.read(path, digest)
    steps = views(task)
    if missing := [each for step in steps for each in step.missing()]:
        raise EnvBug("; ".join(dict.fromkeys(missing)))
    row = item.model_dump(mode="json") | {"digest": digest}
    row["evaluation"] = is_evaluation(task, item)
    if embed:
        row["task"] = {"archive": archive_of(path)}
    if task.compose_problem and find_spec("yaml") is None:
        raise InputError(f"{item.instance_id}: {task.compose_problem}")  # no fault of the task's
    unsupported = [each for step in steps for each in step.unsupported()]
    limits = [step.config.agent.timeout_s for step in steps]
    known = [each for each in limits if each is not None]
    return Inspected(
        row,
        sum(known) if len(known) == len(limits) else None,
        max(step.verifier.timeout_s for step in steps),
        unsupported[0] if unsupported else None,
        all(step.solution is not None for step in steps),
        ("separate",) if all(step.separate for step in steps) else ALL_MODES,
        len(steps),
    )
