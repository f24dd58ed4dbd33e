"""Collects the requirements of a repository's tests from its files, without running them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.swe.item import requirement_name
from envs.swe.package.project import Project, normalize
from hermes_queue.errors import InputError

ReadText = Callable[[str], Awaitable[str | None]]
"""Reads a file of the repository; None if it does not exist."""

MAX_FILES = 50
_OWN_DIRECTORY = re.compile(r"(?:-e\s+|--editable[ =])?\.(?:/\S*)?(?:\[([^\]]*)\])?")


@dataclass(slots=True)
class Dependencies:
    """Requirements in the order in which they were found, without duplicates."""

    lines: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Lines that are not requirements of a package index."""

    def add(self, line: str) -> None:
        """Add a requirement, or note that the line is not one."""
        name = requirement_name(line)
        target = self.lines if name and "@" not in line.partition(";")[0] else self.left_out
        if line not in target:
            target.append(line)


class _Gatherer:
    """Follows lists that refer to other lists."""

    def __init__(self, project: Project, read: ReadText) -> None:
        self._own = normalize(project.name)
        self._read = read
        self._extras = {normalize(name): lines for name, lines in project.extras.items()}
        self._groups = {normalize(name): parts for name, parts in project.groups.items()}
        self._seen: set[tuple[str, str]] = set()
        self.found = Dependencies()

    async def lines(self, lines: Iterable[str]) -> None:
        """Add requirements. A requirement on the package itself adds its extras."""
        for line in lines:
            if self._own and requirement_name(line) == self._own:
                named = re.search(r"\[([^\]]*)\]", line)
                await self.extras(_split(named.group(1)) if named else ())
            else:
                self.found.add(line)

    async def extras(self, names: Iterable[str]) -> None:
        for name in names:
            if self._is_new("extra", name):
                await self.lines(_known(self._extras, name, "--extra"))

    async def groups(self, names: Iterable[str]) -> None:
        for name in names:
            if not self._is_new("group", name):
                continue
            for part in _known(self._groups, name, "--group"):
                if isinstance(part, str):
                    await self.lines([part])
                elif isinstance(part, Mapping) and isinstance(part.get("include-group"), str):
                    await self.groups([part["include-group"]])

    async def files(self, paths: Iterable[str], *, why: str) -> None:
        for path in paths:
            if not self._is_new("file", path):
                continue
            if len(self._seen) > MAX_FILES:
                raise InputError(f"{why} {path}: more than {MAX_FILES} lists refer to each other")
            text = await self._read(path)
            if text is None:
                raise InputError(f"{why} {path}: the repository has no such text file")
            for line in _joined(text):
                await self._file_line(path, line)

    async def _file_line(self, path: str, line: str) -> None:
        other = re.fullmatch(r"(?:-r|--requirement)[ =]*(\S+)", line)
        own = _OWN_DIRECTORY.fullmatch(line)
        if other:
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), other.group(1)))
            await self.files([inside], why=f"{path}: -r")
        elif own:
            await self.extras(_split(own.group(1) or ""))
        else:
            await self.lines([re.sub(r"\s--hash[ =]\S+", "", line).strip()])

    def _is_new(self, kind: str, name: str) -> bool:
        before = len(self._seen)
        self._seen.add((kind, name))
        return len(self._seen) > before


async def gather(
    project: Project,
    read: ReadText,
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
    files: Sequence[str] = (),
) -> Dependencies:
    """The package's own dependencies and those of the chosen lists.

    Raises:
        InputError: a list does not exist; the message names those that do.
    """
    gatherer = _Gatherer(project, read)
    await gatherer.lines(project.dependencies)
    await gatherer.files(project.requirement_files, why="the package's dependencies: file")
    await gatherer.extras(extras)
    await gatherer.groups(groups)
    await gatherer.files(files, why="--requirements")
    return gatherer.found


def _known(table: Mapping[str, Sequence[Any]], name: str, flag: str) -> Sequence[Any]:
    if normalize(name) not in table:
        known = ", ".join(table) or "none"
        raise InputError(f"{flag} {name}: not in the repository; it has: {known}")
    return table[normalize(name)]


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _joined(text: str) -> list[str]:
    """Lines without comments, with backslash continuations joined."""
    whole = re.sub(r"\\\r?\n", " ", text)
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in whole.splitlines()]
    return [line for line in lines if line]
