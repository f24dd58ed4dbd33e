"""Datasets of Harbor tasks that are no rows: a folder of task folders, and a registry."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hermes_plugins.harbor.shapes.known import is_task
from hermes_plugins.harbor.task import CONFIG
from hermes_queue.errors import InputError
from producers.run.dataset import Dataset, SourceRow

MAX_DEPTH = 4
MAX_REGISTRY_BYTES = 256 << 20
ARCHIVES = tuple(ending for _, endings, _ in shutil.get_unpack_formats() for ending in endings)


class FolderDataset:
    """Every folder with a `task.toml` below a folder, by name; or the folder itself."""

    def __init__(self, path: Path, first: Sequence[str] = ()) -> None:
        """As a dataset of all tasks below `path`; those with the names `first` come first."""
        self.path = path.resolve()
        self.name = path.name or str(path)
        self._first = first

    def rows(self, seed: int | None = None) -> Iterator[SourceRow]:
        """See `Dataset.rows`."""
        found = list(_task_folders(self.path, MAX_DEPTH))
        found.sort(key=lambda folder: folder.name not in self._first)
        if not found:
            packed = _packed(self.path)
            raise InputError(f"{self.path}: has no folder with a {CONFIG} in it{packed}")
        for folder in _ordered(found, seed):
            name = folder.name if folder == self.path else str(folder.relative_to(self.path))
            yield SourceRow(str(folder), {"instance_id": name, "task": str(folder)})


class RegistryDataset:
    """One dataset of a registry: a JSON file that lists tasks at commits of git repositories."""

    def __init__(self, path: Path, dataset: str) -> None:
        self.path = path
        self.name = f"{path.name}#{dataset}" if dataset else path.name
        self._dataset = dataset

    def rows(self, seed: int | None = None) -> Iterator[SourceRow]:
        """See `Dataset.rows`."""
        tasks = self._tasks()
        for index in _ordered(list(range(len(tasks))), seed):
            place = f"{self.path}: task {index + 1} of {self.name}"
            yield SourceRow(place, _registered(tasks[index], place))

    def _tasks(self) -> list[Any]:
        try:
            if self.path.stat().st_size > MAX_REGISTRY_BYTES:
                raise InputError(f"{self.path}: has more than {MAX_REGISTRY_BYTES} bytes")
            content = json.loads(self.path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: is no readable JSON: {error}") from error
        datasets = content if isinstance(content, list) else [content]
        named = {_name_of(each): each for each in datasets if isinstance(each, dict)}
        named = {name: each for name, each in named.items() if isinstance(each.get("tasks"), list)}
        if not named:
            raise InputError(f"{self.path}: is no registry: a list of objects with name and tasks")
        if not self._dataset and len(named) == 1:
            [self._dataset] = named
        chosen = named.get(self._dataset) or _only(named.values(), self._dataset)
        if chosen is None:
            raise InputError(
                f"{self.path}: has no dataset {self._dataset!r}; name one of "
                f"{', '.join(sorted(named)[:20])} with --dataset {self.path}#NAME"
            )
        return list(chosen["tasks"])


def open_tasks(name: str) -> Dataset | None:
    """The dataset that a folder, or `registry.json#name`, is; None for anything else."""
    file, _, dataset = name.partition("#")
    path = Path(file).expanduser()
    if path.is_dir():
        return FolderDataset(path)
    if path.suffix == ".json":
        if not path.exists():
            raise InputError(f"{path}: no such file; --dataset takes registry.json#NAME")
        return RegistryDataset(path, dataset)
    if path.name.endswith(ARCHIVES) and path.exists():
        raise InputError(f"{path}: is an archive: unpack it, and name the folder with --dataset")
    return None


def _packed(path: Path) -> str:
    """Which archives are in a folder, where tasks may be; "" = none."""
    found = sorted(name for name in os.listdir(path) if name.endswith(ARCHIVES))
    more = ", ..." if len(found) > 3 else ""
    return f"; first unpack what is in {', '.join(found[:3])}{more} ({len(found)})" if found else ""


def _only(datasets: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The only dataset of that name, whatever its version."""
    found = [each for each in datasets if each.get("name") == name]
    return found[0] if len(found) == 1 else None


def _name_of(dataset: dict[str, Any]) -> str:
    version = dataset.get("version")
    return f"{dataset.get('name', '')}" + (f"@{version}" if version else "")


def _registered(task: Any, place: str) -> dict[str, Any]:
    if not isinstance(task, dict):
        raise InputError(f"{place}: is no object")
    url, commit = task.get("git_url"), task.get("git_commit_id")
    if not url or not commit:
        raise InputError(f"{place}: has no git_url and git_commit_id")
    path = str(task.get("path") or "")
    name = task.get("name") or path.rpartition("/")[2]
    return {"instance_id": str(name), "task": {"git_url": url, "commit": commit, "path": path}}


def _task_folders(path: Path, depth: int) -> Iterator[Path]:
    if is_task(path):
        yield path
        return
    if depth == 0:
        return
    try:
        names = sorted(e.name for e in os.scandir(path) if e.is_dir(follow_symlinks=False))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    for name in names:
        if not name.startswith("."):
            yield from _task_folders(path / name, depth - 1)


def _ordered(found: list[Any], seed: int | None) -> list[Any]:
    if seed is not None:
        random.Random(seed).shuffle(found)  # noqa: S311 - an order, not a secret
    return found
