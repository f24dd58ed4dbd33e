"""A repository's description of its package: name, version, dependencies, entry points.

Read from the text of a pinned tree, without running anything: `PKG-INFO` of an sdist,
`pyproject.toml` (PEP 621, Poetry, Flit), `setup.cfg`, literals in `setup.py`. For each field,
the first of these that states it counts. Values that need code to run are left out, never guessed.
"""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from email.parser import HeaderParser
from typing import Any

from hermes_queue.syntax import parse_module

MAX_FILE_CHARACTERS = 512 << 10
MAX_ENTRY_CHARACTERS = 1000
"""Largest size of one entry point."""
CONFIGURATION = ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py")
"""Files at the root of the tree, in order of precedence."""

EntryPoints = Mapping[str, Mapping[str, str]]
"""Group -> name -> "module:attribute"."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}")
_HEADERS = {
    "summary": "Summary",
    "author": "Author",
    "author-email": "Author-email",
    "license": "License",
    "home-page": "Home-page",
    "requires-python": "Requires-Python",
    "classifier": "Classifier",
}
"""Other fields of an sdist's PKG-INFO that are kept."""

_MAX_SOURCE_BYTES = 512 << 10
_DEPTH = 20
"""Depth to which expressions, and names that stand for others, are followed."""


@dataclass(frozen=True, slots=True)
class Project:
    """A package's description. Empty fields are not stated, or only computed by code."""

    name: str = ""
    version: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    """Further fields of the metadata, e.g. ("Summary", "Clamp numbers")."""
    entry_points: EntryPoints = field(default_factory=dict)
    dependencies: tuple[str, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Dependency groups as in pyproject.toml: requirements, and {"include-group": name}."""
    version_places: tuple[tuple[str, str], ...] = ()
    """Other places of the version: ("attr", "pkg.__version__") or ("file", path)."""
    requirement_files: tuple[str, ...] = ()
    """Files that list the dependencies."""


def parse_project(texts: Mapping[str, str]) -> Project:
    """The project in these configuration files, by their names in `CONFIGURATION`."""
    readers = dict(zip(CONFIGURATION, (_pkg_info, _pyproject, _setup_cfg, _setup_py), strict=True))
    parts = [
        readers[name](texts[name])
        for name in CONFIGURATION
        if name in texts and len(texts[name]) <= MAX_FILE_CHARACTERS
    ]
    merged: dict[str, Any] = {}
    for one in fields(Project):
        stated = [value for part in parts if (value := getattr(part, one.name))]
        if one.name == "version_places":
            merged[one.name] = tuple(place for places in stated for place in places)
        elif stated:
            merged[one.name] = stated[0]
    return Project(**merged)


def normalize(name: str) -> str:
    """A distribution's name as the index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_version(value: object) -> bool:
    """Whether it is a string in the form of a version."""
    return isinstance(value, str) and _VERSION.fullmatch(value) is not None


def parse_entry_points(text: str) -> EntryPoints:
    """The groups of an entry_points.txt; malformed entries are left out."""
    sections = _ini(text, delimiters=("=",), comment_prefixes=("#", ";"))
    return clean_entry_points({group: dict(points) for group, points in sections.items()})


def _ini(text: str, **syntax: Any) -> Mapping[str, Mapping[str, str]]:
    """Section -> key -> value; empty if the text is malformed."""
    parser = configparser.ConfigParser(interpolation=None, strict=False, **syntax)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {name: parser[name] for name in parser.sections()}


def clean_entry_points(groups: Mapping[Any, Any]) -> EntryPoints:
    """The valid part of `groups`: names and values are strings on one line each."""
    cleaned: dict[str, dict[str, str]] = {}
    for group, points in groups.items():
        pairs = points.items() if isinstance(points, Mapping) else _pairs(points)
        kept = {
            name: value.strip()
            for name, value in pairs
            if isinstance(name, str)
            and isinstance(value, str)
            and len(name) + len(value) <= MAX_ENTRY_CHARACTERS
            and re.fullmatch(r"[^\s=\[#;][^\n\r=]*", name)
            and re.fullmatch(r"\s*[\w.]+\s*(:\s*[\w.]+\s*)?(\[[^\n\r\]]*\])?\s*", value)
        }
        if kept and isinstance(group, str) and re.fullmatch(r"[\w.:-]+", group):
            cleaned[group] = kept
    return cleaned


def _pairs(points: object) -> list[tuple[str, str]]:
    """Split `name = module:attr`, which setuptools takes as a list or as lines."""
    halves = [line.partition("=") for line in _lines(points)]
    return [(name.strip(), value.strip()) for name, mark, value in halves if mark]


def _lines(value: object) -> list[str]:
    if isinstance(value, str):
        value = value.splitlines()
    if not isinstance(value, list | tuple):
        return []
    lines = [line.strip() for line in value if isinstance(line, str)]
    return [line for line in lines if line and not line.startswith("#")]


def _pkg_info(text: str) -> Project:
    message = HeaderParser().parsestr(text)
    headers = [(str(key), " ".join(str(value).split())) for key, value in message.items()]
    extras: dict[str, list[str]] = {}
    plain = []
    for line in (value for key, value in headers if key.lower() == "requires-dist"):
        marked = re.search(r"""\bextra\s*==\s*["']([^"']+)["']""", line)
        if marked:
            extras.setdefault(marked.group(1), []).append(line.partition(";")[0].strip())
        else:
            plain.append(line)
    return Project(
        name=_name(message.get("Name")),
        version=_version(message.get("Version")),
        headers=tuple((_HEADERS[k.lower()], v) for k, v in headers if k.lower() in _HEADERS),
        dependencies=tuple(plain),
        extras={name: tuple(lines) for name, lines in extras.items()},
    )


def _pyproject(text: str) -> Project:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return Project()
    project, tool = _table(data, "project"), _table(data, "tool")
    poetry, flit = _table(tool, "poetry"), _table(_table(tool, "flit"), "metadata")
    dynamic = _table(_table(tool, "setuptools"), "dynamic")
    scripts = {
        "console_scripts": project.get("scripts") or poetry.get("scripts"),
        "gui_scripts": project.get("gui-scripts"),
    }
    groups = {
        **_table(poetry, "plugins"),
        **_table(_table(tool, "flit"), "entrypoints"),
        **_table(project, "entry-points"),
        **{group: points for group, points in scripts.items() if isinstance(points, Mapping)},
    }
    return Project(
        name=_name(project.get("name") or poetry.get("name") or flit.get("dist-name"))
        or _name(flit.get("module")),
        version=_version(project.get("version") or poetry.get("version")),
        headers=_stated(
            ("Summary", project.get("description") or poetry.get("description")),
            ("Requires-Python", project.get("requires-python")),
        ),
        entry_points=clean_entry_points(groups),
        dependencies=tuple(_lines(project.get("dependencies")) or _poetry(poetry, "dependencies")),
        extras=_named_lines(_table(project, "optional-dependencies")),
        groups=_groups(data, poetry),
        version_places=_version_places(project, tool, dynamic, flit),
        requirement_files=_files(_table(dynamic, "dependencies").get("file")),
    )


def _groups(data: Mapping[str, Any], poetry: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    stated = {
        name: tuple(part for part in parts if isinstance(part, str | Mapping))
        for name, parts in _table(data, "dependency-groups").items()
        if isinstance(parts, list)
    }
    old = {"dev": tuple(_poetry(poetry, "dev-dependencies"))}
    named = {
        name: tuple(_poetry(group, "dependencies"))
        for name, group in _table(poetry, "group").items()
        if isinstance(group, Mapping)
    }
    return {name: parts for name, parts in {**old, **named, **stated}.items() if parts}


def _version_places(
    project: Mapping[str, Any],
    tool: Mapping[str, Any],
    dynamic: Mapping[str, Any],
    flit: Mapping[str, Any],
) -> tuple[tuple[str, str], ...]:
    scm, hatch, pdm = (_table(tool, name) for name in ("setuptools_scm", "hatch", "pdm"))
    hook = _table(_table(_table(hatch, "build"), "hooks"), "vcs")
    stated = _table(dynamic, "version")
    files = [
        *_files(stated.get("file")),
        _table(hatch, "version").get("path"),
        _table(pdm, "version").get("path"),
        *(scm.get(key) for key in ("version_file", "write_to")),
        hook.get("version-file"),
    ]
    attributes = [stated.get("attr")]
    module = _table(_table(tool, "flit"), "module").get("name") or flit.get("module")
    if module or "version" in _lines(project.get("dynamic")):
        attributes.append(f"{module or str(project.get('name')).replace('-', '_')}.__version__")
    return (
        *(("attr", text) for text in attributes if isinstance(text, str)),
        *(("file", text) for text in files if isinstance(text, str)),
    )


def _setup_cfg(text: str) -> Project:
    sections = _ini(text)
    metadata, options = _table(sections, "metadata"), _table(sections, "options")
    version = metadata.get("version", "").strip()
    place = re.fullmatch(r"(attr|file):\s*(\S+)", version)
    stated = options.get("install_requires", "").strip()
    files = _files(stated.removeprefix("file:").split(",")) if stated.startswith("file:") else ()
    return Project(
        name=_name(metadata.get("name")),
        version="" if place else _version(version),
        headers=_stated(("Summary", metadata.get("description"))),
        entry_points=clean_entry_points(_table(sections, "options.entry_points")),
        dependencies=() if files else tuple(_lines(stated)),
        extras=_named_lines(_table(sections, "options.extras_require")),
        version_places=((place.group(1), place.group(2)),) if place else (),
        requirement_files=files,
    )


def _setup_py(text: str) -> Project:
    stated = _setup_arguments(text)
    points = stated.get("entry_points")
    if isinstance(points, str):
        groups = parse_entry_points(points)
    else:
        groups = clean_entry_points(points if isinstance(points, dict) else {})
    extras = stated.get("extras_require")
    return Project(
        name=_name(stated.get("name")),
        version=_version(stated.get("version")),
        headers=_stated(("Summary", stated.get("description"))),
        entry_points=groups,
        dependencies=tuple(_lines(stated.get("install_requires"))),
        extras=_named_lines(extras if isinstance(extras, dict) else {}),
    )


def _poetry(table: Mapping[str, Any], key: str) -> list[str]:
    """Requirements for Poetry's own form of dependencies, without `python` and paths."""
    found = []
    for name, version in _table(table, key).items():
        if isinstance(version, Mapping) and not version.get("optional"):
            extras = _files(version.get("extras"))
            name += f"[{','.join(extras)}]" if extras else ""
            version = version.get("version")
        if isinstance(version, str) and name != "python":
            found.append(name + ",".join(_bounds(part.strip()) for part in version.split(",")))
    return found


def _bounds(version: str) -> str:
    """Convert `^1.2` and `~1.2` to standard version bounds."""
    numbers = re.fullmatch(r"([\^~])\s*(\d+(?:\.\d+)*)\S*", version)
    if version in ("", "*"):
        return ""
    if numbers is None:
        return version if version[0] in "<>=!~" else f"=={version}"
    parts = [int(part) for part in numbers.group(2).split(".")]
    if numbers.group(1) == "~":
        place = min(1, len(parts) - 1)
    else:
        place = next((i for i, part in enumerate(parts) if part), len(parts) - 1)
    upper = [*parts[:place], parts[place] + 1]
    return f">={numbers.group(2)},<{'.'.join(map(str, upper))}"


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}


def _named_lines(table: Mapping[Any, Any]) -> dict[str, tuple[str, ...]]:
    return {str(name): tuple(_lines(value)) for name, value in table.items()}


def _files(value: object) -> tuple[str, ...]:
    parts: Iterable[object] = value if isinstance(value, list | tuple) else [value]
    return tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())


def _stated(*headers: tuple[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((key, " ".join(v.split())) for key, v in headers if isinstance(v, str) and v)


def _name(value: object) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def _version(value: object) -> str:
    return value if isinstance(value, str) and is_version(value) else ""


def version_in(source: str, names: Sequence[str]) -> str:
    """The version that Python source assigns to one of `names`; empty if there is none."""
    stated = _assignments(source)
    for name in names:
        value = stated.get(name)
        if isinstance(value, list) and value and all(isinstance(part, int) for part in value):
            value = ".".join(map(str, value))
        if is_version(value):
            return str(value)
    return ""


class _NoLiteral(Exception):
    """The expression is not only literals."""


def _parse(source: str) -> ast.Module:
    """The syntax tree; empty if the source is not Python, or too large."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return parse_module(source if len(source) <= _MAX_SOURCE_BYTES else "")
    return ast.Module([], [])


def _assignments(source: str) -> dict[str, Any]:
    """Name -> value of the module's assignments of literals; the last one counts."""
    return _assigned(_parse(source))


def _setup_arguments(source: str) -> dict[str, Any]:
    """The keyword arguments of a setup.py's call of `setup` that are literals."""
    tree = _parse(source)
    names = _assigned(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found: dict[str, Any] = {}
    for keyword in (k for call in calls if _called(call.func) == "setup" for k in call.keywords):
        with suppress(_NoLiteral):
            value = _value(keyword.value, names)
            if keyword.arg is not None:
                found[keyword.arg] = value
            elif isinstance(value, dict):
                found.update({key: part for key, part in value.items() if isinstance(key, str)})
    return found


def _called(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _assigned(tree: ast.Module) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                names.pop(target.id, None)
                with suppress(_NoLiteral):
                    names[target.id] = _value(node.value, names)
    return names


def _value(node: ast.expr, names: Mapping[str, Any], depth: int = _DEPTH) -> Any:
    """The value of an expression of literals, names of literals, and sums of both."""
    if depth == 0:
        raise _NoLiteral
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(part, names, depth - 1) for part in node.elts]
    if isinstance(node, ast.Dict):
        return _dict(node, names, depth)
    if isinstance(node, ast.Call) and _called(node.func) == "dict" and not node.args:
        return {k.arg: _value(k.value, names, depth - 1) for k in node.keywords if k.arg}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_value(part, names, depth - 1) for part in (node.left, node.right))
        if type(left) is type(right) and isinstance(left, str | list):
            return left + right
    raise _NoLiteral


def _dict(node: ast.Dict, names: Mapping[str, Any], depth: int) -> dict[Any, Any]:
    """The pairs of a dict that are literals: one computed extra must not hide the others."""
    found: dict[Any, Any] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant):
            with suppress(_NoLiteral):
                found[key.value] = _value(part, names, depth - 1)
    return found
