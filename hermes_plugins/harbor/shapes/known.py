"""The shapes of task folders, and a folder of any of them as a Harbor task."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_plugins.harbor.endless import convert as endless
from hermes_plugins.harbor.shapes import terminal_bench
from hermes_plugins.harbor.task import CONFIG

Converter = Callable[[Path, Path], Path]
"""Writes the Harbor task of a folder into a new folder; equal for equal sources."""


def converter(folder: Path) -> Converter | None:
    """What makes a folder of another shape into a Harbor task; None for any other. Blocking."""
    if (folder / CONFIG).exists():
        return None
    if endless.is_endless(folder):
        return endless.convert
    return terminal_bench.convert if terminal_bench.is_terminal_bench(folder) else None


def is_task(folder: Path) -> bool:
    """Whether a folder is a task in any known shape. Blocking."""
    return (folder / CONFIG).is_file() or converter(folder) is not None


@contextmanager
def as_harbor(folder: Path) -> Iterator[Path]:
    """The folder itself, or for the time of the block a converted copy. Blocking.

    Raises:
        EnvBug: it cannot be converted.
    """
    if (convert := converter(folder)) is None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="harbor-") as scratch:
        yield convert(folder, Path(scratch) / "task")
