"""Metadata of the package under test, which is never installed, beside its tree.

Packages read their own version at import (`importlib.metadata.version`), find plug-ins by entry
points, and test that they are found. So a `<name>-<version>.dist-info` is placed in a separate
directory at the end of PYTHONPATH, in the slot's home. It is outside the workspace and its git,
and created again for grading, so that no change an agent makes to it counts.

Its content comes from the row (`environment.distribution`) and, for missing fields, from the
pinned tree, which is read as data (see `envs.swe.package.project`). If only code could compute
the version, it is the row's column `version`, else "0.0.0".
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from envs.swe.images.source import ImageSource
from envs.swe.item import DistributionFields, GitSource, SdistSource, SuiteRuntime
from envs.swe.package.project import (
    CONFIGURATION,
    EntryPoints,
    Project,
    is_version,
    normalize,
    parse_entry_points,
    parse_project,
    version_in,
)
from envs.swe.repository import Repository
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext

UNKNOWN_VERSION = "0.0.0"
DIRECTORY = ".distribution"
"""In the slot's home."""
SHELL_PATH = f'"$HOME"/{DIRECTORY}'
"""`DIRECTORY` for a shell in the slot."""
MAX_FILE_BYTES = 256 << 10
MAX_METADATA_CHARACTERS = 64 << 10
"""Largest size of each written file."""
_VERSION_NAMES = ("__version__", "VERSION", "version", "__VERSION__")
_VERSION_MODULES = ("__init__", "_version", "version", "__about__", "__version__", "about", "_meta")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Metadata that an installation of the package under test would have recorded."""

    name: str
    version: str
    entry_points: EntryPoints
    headers: tuple[tuple[str, str], ...] = ()
    top_level: tuple[str, ...] = ()
    """Import names."""

    @property
    def directory(self) -> str:
        """Name of the dist-info directory."""
        version = re.sub(r"[^A-Za-z0-9.!+]", "_", self.version)
        return f"{normalize(self.name).replace('-', '_')}-{version}.dist-info"

    def files(self) -> dict[str, str]:
        """Names and contents of the files in it."""
        headers = [("Metadata-Version", "2.1"), ("Name", self.name), ("Version", self.version)]
        metadata = "".join(f"{key}: {value}\n" for key, value in [*headers, *self.headers])
        groups = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in self.entry_points.items()
        ]
        made = {
            "METADATA": metadata,
            "entry_points.txt": "\n".join(groups),
            "top_level.txt": "".join(f"{name}\n" for name in self.top_level),
            "INSTALLER": "hermes-queue\n",
        }
        record = "".join(f"{self.directory}/{name},,\n" for name in [*made, "RECORD"])
        return {**made, "RECORD": record}


async def place(context: SlotContext, distribution: Distribution | None) -> str:
    """Write the metadata into the slot, replacing its directory, which is returned for PYTHONPATH.

    Raises:
        SandboxError: the slot could not take it.
    """
    lines = ["set -eu", f"d={SHELL_PATH}", 'rm -rf -- "$d"', 'mkdir -p -- "$d"']
    if distribution is not None:
        lines.append(f'i="$d"/{shlex.quote(distribution.directory)}; mkdir -- "$i"')
        for name, text in distribution.files().items():
            plain = text.encode(errors="replace").decode().replace("\0", "")
            lines.append(f'printf %s {shlex.quote(plain)} > "$i"/{name}')
    lines.append('printf %s "$d"')
    result = await context.run("\n".join(lines), cwd="/", timeout_s=60.0)
    directory = result.stdout.decode(errors="replace")
    if not result.ok or not directory.startswith("/"):
        raise SandboxError(f"the package's metadata could not be written: {result.output[-300:]}")
    return directory


async def describe(
    repository: Repository,
    tree: str,
    runtime: SuiteRuntime,
    source: SdistSource | GitSource | ImageSource,
    fallback_version: object = None,
) -> Distribution | None:
    """The metadata of the package in the pinned `tree`; None if its name is unknown.

    The fields in `runtime` take precedence over the files. `fallback_version` is used if no file
    states a version and this is one.

    Raises:
        EnvBug: the environment would contain a copy of the package under test.
    """
    reader = await open_tree(repository, tree)
    project = await read_project(reader)
    known, version = runtime.distribution or DistributionFields(), ""
    name = known.name or project.name
    if isinstance(source, SdistSource):
        name, version = known.name or source.name, source.version
    for own in dict.fromkeys((project.name, name)):
        _refuse(runtime, own)
    if not name:
        return None
    top_level = _top_level(reader.sizes, runtime.pythonpath)
    if not (version := known.version or project.version or version):
        places = _version_files(project, runtime.pythonpath, top_level)
        version = await _stated_version(reader, places) or UNKNOWN_VERSION
        if version == UNKNOWN_VERSION and is_version(fallback_version):
            version = str(fallback_version)
    points = project.entry_points if known.entry_points is None else known.entry_points
    return Distribution(name, version, _within(points), _headers(project), top_level)


def _refuse(runtime: SuiteRuntime, name: str) -> None:
    """Check the name in the pinned files against the row's dependencies."""
    if name and (found := runtime.requirement_of(name)):
        field, line = found
        raise EnvBug(
            f"environment.{field}: {line!r} is the package under test, as the repository's own "
            "configuration names it: its clean copy would be in the slot; remove it"
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """The text files of a pinned tree."""

    repository: Repository
    tree: str
    sizes: Mapping[str, int]
    """Path -> bytes."""

    async def text(self, path: str) -> str | None:
        """A file of the tree; None if it does not exist, is too large, or is not UTF-8."""
        if self.sizes.get(path, MAX_FILE_BYTES + 1) > MAX_FILE_BYTES:
            return None
        try:
            return (await self.repository.read(self.tree, path)).decode("utf-8-sig")
        except UnicodeDecodeError:
            return None


async def open_tree(repository: Repository, tree: str) -> Reader:
    """A reader of the regular files of `tree`."""
    listing = (await repository.git("ls-tree", "-r", "-l", "-z", tree)).decode(errors="replace")
    found = {}
    for line in listing.split("\0")[:-1]:
        meta, _, path = line.partition("\t")
        mode, _, _, size = meta.split()
        if mode.startswith("100"):
            found[path] = int(size)
    return Reader(repository, tree, found)


async def read_project(reader: Reader) -> Project:
    """The package's description in the configuration files at the root of the tree."""
    texts = {name: text for name in CONFIGURATION if (text := await reader.text(name)) is not None}
    # In a thread: the row names the repository, so the files may contain anything.
    project = await asyncio.to_thread(parse_project, texts)
    if project.entry_points or "PKG-INFO" not in texts:
        return project
    for path in reader.sizes:
        if path.endswith(".egg-info/entry_points.txt") and path.count("/") <= 2:
            return replace(project, entry_points=parse_entry_points(await reader.text(path) or ""))
    return project


async def _stated_version(reader: Reader, places: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """The version in the first of these files that states it as a literal."""
    for path, names in places:
        found = (await reader.text(path) or "").strip()
        if found and path.endswith(".py"):
            found = await asyncio.to_thread(version_in, found, names)
        if is_version(found):
            return found
    return ""


def _version_files(
    project: Project, roots: Sequence[str], top_level: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Files that may state the version, most likely first: as configured, then in the package."""
    modules: list[tuple[str, tuple[str, ...]]] = []
    for kind, text in project.version_places:
        if kind == "file":
            yield str(PurePosixPath(text)), _VERSION_NAMES
        else:
            module, _, attribute = text.rpartition(".")
            modules.append((module, (attribute, *_VERSION_NAMES)))
    own = normalize(project.name).replace("-", "_")
    ordered = sorted(top_level, key=lambda name: name.lower() != own)[:3]
    modules += [(name, _VERSION_NAMES) for name in ordered]
    for module, names in modules:
        for root in roots:
            base = PurePosixPath(root, *module.split("."))
            yield f"{base}.py", names
            for part in _VERSION_MODULES:
                yield str(base / f"{part}.py"), names


def _top_level(paths: Mapping[str, int], roots: Sequence[str]) -> tuple[str, ...]:
    """Import names of the packages and modules directly below the import roots."""
    found = set()
    for path in paths:
        for root in roots:
            pure = PurePosixPath(path)
            parts = pure.relative_to(root).parts if pure.is_relative_to(root) else ()
            if len(parts) == 2 and parts[1] == "__init__.py":
                found.add(parts[0])
            elif len(parts) == 1 and pure.suffix == ".py":
                found.add(pure.stem)
    others = {"tests", "test", "testing", "docs", "examples", "setup", "conftest", "noxfile"}
    return tuple(sorted(name for name in found - others if name.isidentifier()))


def _headers(project: Project) -> tuple[tuple[str, str], ...]:
    plain = [("Requires-Dist", line) for line in project.dependencies]
    extras = []
    for name, lines in project.extras.items():
        extras.append(("Provides-Extra", name))
        extras += [("Requires-Dist", _for_extra(line, name)) for line in lines]
    kept, left = [], MAX_METADATA_CHARACTERS
    for key, value in (*project.headers, *plain, *extras):
        left -= len(key) + len(value)
        if left > 0 and value.isprintable():
            kept.append((key, value))
    return tuple(kept)


def _for_extra(line: str, extra: str) -> str:
    requirement, mark, condition = line.partition(";")
    own = f'extra == "{extra}"'
    return f"{requirement.strip()}; " + (f"({condition.strip()}) and {own}" if mark else own)


def _within(groups: EntryPoints) -> EntryPoints:
    """As many groups as fit."""
    kept, left = {}, MAX_METADATA_CHARACTERS
    for group, points in groups.items():
        left -= len(group) + sum(len(name) + len(value) for name, value in points.items())
        if left > 0:
            kept[group] = points
    return kept
