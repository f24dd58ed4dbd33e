"""Collects the requirements of a repository's tests from its files, without running them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from envs.swe.item import requirement_name
from envs.swe.package.project import Project, normalize
from hermes_queue.errors import InputError

ReadText = Callable[[str], Awaitable[str | None]]
"""Reads a file of the repository; None if it does not exist."""

MAX_FILES = 50
_OWN_DIRECTORY = re.compile(r"(?:-e\s+|--editable[ =])?\.(?:/\S*)?(?:\[([^\]]*)\])?")


class Dependencies:
    """Requirements in the order in which they are found, also in lists that others refer to."""

    def __init__(self, project: Project, read: ReadText) -> None:
        self.lines: list[str] = []
        self.left_out: list[str] = []
        """Lines that are not requirements of a package index."""
        self._own = normalize(project.name)
        self._read = read
        self._extras = {normalize(name): lines for name, lines in project.extras.items()}
        self._groups = {normalize(name): parts for name, parts in project.groups.items()}
        self._seen: set[tuple[str, str]] = set()

    async def add(self, lines: Iterable[str]) -> None:
        """Add requirements. A requirement on the package itself adds its extras."""
        for line in lines:
            name = requirement_name(line)
            target = self.lines if name and "@" not in line.partition(";")[0] else self.left_out
            if self._own and name == self._own:
                named = re.search(r"\[([^\]]*)\]", line)
                await self.add_extras(_split(named.group(1)) if named else ())
            elif line not in target:
                target.append(line)

    async def add_extras(self, names: Iterable[str]) -> None:
        """Add optional dependencies of the package."""
        for name in names:
            if self._is_new("extra", name):
                await self.add(_known(self._extras, name, "--extra"))

    async def add_groups(self, names: Iterable[str]) -> None:
        """Add dependency groups."""
        for name in names:
            if not self._is_new("group", name):
                continue
            for part in _known(self._groups, name, "--group"):
                if isinstance(part, str):
                    await self.add([part])
                elif isinstance(part, Mapping) and isinstance(part.get("include-group"), str):
                    await self.add_groups([part["include-group"]])

    async def add_files(self, paths: Iterable[str], *, why: str) -> None:
        """Add requirements files; `why` names the origin of the paths."""
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
            await self.add_files([inside], why=f"{path}: -r")
        elif own:
            await self.add_extras(_split(own.group(1) or ""))
        else:
            await self.add([re.sub(r"\s--hash[ =]\S+", "", line).strip()])

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
    found = Dependencies(project, read)
    await found.add(project.dependencies)
    await found.add_files(project.requirement_files, why="the package's dependencies: file")
    await found.add_extras(extras)
    await found.add_groups(groups)
    await found.add_files(files, why="--requirements")
    return found


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
