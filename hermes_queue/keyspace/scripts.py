"""The Lua scripts. The header of each declares its keys, arguments and answer.

    -- @include time, publish/settle    files of `lua/include/`, or of a folder beside the script
    -- @key run = run:{run_id}, leases  keys without the prefix: name = pattern, or the key itself
    -- @key lists[]                     any number of keys
    -- @arg id, owner  a remark         text after two spaces is for people
    -- @arg claims[id, epoch]           any number of rows; `ids[]`: of single values
    -- @answer verdict, jobs[id, lane]  the parts of an answer that is a list
    -- @lazy settle, lose               of an included file: the functions that others may call

A call of a script makes all functions and tables of its files anew. Those of a `@lazy` file, and of
the files that only it includes, are made when one of the named functions is called.

A script of a plugin lies in the folder `lua` of the plugin's package, is called `package:name`, and
includes files of our `lua/include/` alone.

A generated preamble makes these names local variables in Lua. `Deployment.call` takes the same
names: arguments, and the placeholders in patterns of keys. `prefix` is passed automatically.
Every list of keys or arguments but the last one is preceded by its number of rows.
"""

from __future__ import annotations

import hashlib
import re
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from hermes_queue.errors import printable
from hermes_queue.plugins import installed

_tuple_of: Any = namedtuple  # its fields are known only at run time

_LINE = re.compile(r"^-- @(\w+) (.*?)(?:  .*)?$", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?:\[([^]]*)\]| = ([^\s,]+))?(?:, |$)")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class _Part:
    """One name of a header line."""

    def __init__(self, name: str, fields: str | None, pattern: str | None) -> None:
        self.name = name
        self.pattern = pattern or name
        """Pattern of a key."""
        self.fields = None if fields is None else re.findall(r"\w+", fields)
        """Fields per row of a list; empty = rows are single values."""
        self.row: Any = _tuple_of(name, self.fields) if self.fields else None

    @property
    def width(self) -> int:
        return len(self.fields or "x")


@dataclass(frozen=True)
class Script:
    """One script: its text as it is sent, its input and its answer."""

    name: str
    source: str
    sha1: str
    """Redis' name for the source."""
    keys: tuple[_Part, ...]
    args: tuple[_Part, ...]
    takes: frozenset[str]
    """Names that a call has to give."""
    _answer: tuple[_Part, ...]
    _answer_type: Any

    def packed(self, prefix: str, given: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
        """Keys and arguments in the order of the header.

        Raises:
            TypeError: a name is missing or unknown.
        """
        if given.keys() != self.takes:
            wrong = {"missing": self.takes - given.keys(), "unknown": given.keys() - self.takes}
            texts = [f"{what} {', '.join(sorted(names))}" for what, names in wrong.items() if names]
            raise TypeError(f"script {self.name}: {'; '.join(texts)}")
        values = {**given, "prefix": prefix}
        keys: list[str] = []
        for part in self.keys:
            listed = part.fields is not None
            keys += values[part.name] if listed else [part.pattern.format_map(values)]
        keys = [prefix + key for key in keys]
        args = [_plain(values[part.name]) for part in self.args if part.fields is None]
        args += [len(values[part.name]) for part in _counted(self.keys, self.args)]
        for part in self.args:
            if part.fields is not None:
                args += _flat(part, values[part.name])
        return keys, args

    def answer(self, raw: Any) -> Any:
        """A list as a named tuple of the header's names; parts missing at its end are None."""
        if not self._answer or not isinstance(raw, list):
            return raw
        parts = zip(self._answer, raw, strict=False)
        return self._answer_type(
            *([part.row(*row) for row in value] if part.row else value for part, value in parts)
        )


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, of a plugin if the name says so.

    Raises:
        FileNotFoundError: the script does not exist.
        ValueError: a header line is malformed, or declares a name twice.
    """
    text = _text(name)
    header: dict[str, list[_Part]] = {"key": [], "arg": [], "answer": []}
    for what, body in _LINE.findall(text):
        if what != "include":
            header[what] += _parts(name, body)
    keys, args, answer = (tuple(parts) for parts in header.values())
    names = [part.name for part in (*keys, *args)]
    if twice := {each for each in names if names.count(each) > 1}:
        raise ValueError(f"lua/{name}.lua: {', '.join(sorted(twice))} is named twice")
    takes = {part.name for part in args} | {part.name for part in keys if part.fields is not None}
    takes |= {each for part in keys for each in _PLACEHOLDER.findall(part.pattern)}
    answer_type = _tuple_of("answer", [part.name for part in answer], defaults=[None] * len(answer))
    source = _source(_preamble(keys, args), dict(_included(text, set())), text)
    sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    takes -= {"prefix"}
    return Script(name, source, sha1, keys, args, frozenset(takes), answer, answer_type)


def names() -> list[str]:
    """Names of all scripts, those of our plugins included."""
    packages = [each.target.partition(":")[0] for each in installed() if each.is_ours]
    found = ((package, _folder(package)) for package in packages)
    of_plugins = (
        f"{package}:{name}"
        for package, folder in found
        if folder.is_dir()
        for name in _names_in(folder)
    )
    return sorted([*_names_in(_folder()), *of_plugins])


def _names_in(folder: Any) -> list[str]:
    return [path.name[:-4] for path in folder.iterdir() if path.name.endswith(".lua")]


def _folder(package: str = "hermes_queue.keyspace") -> Any:
    return resources.files(package).joinpath("lua")


@cache
def _text(name: str) -> str:
    package, is_of_plugin, file = name.rpartition(":")
    folder = _folder(package) if is_of_plugin else _folder()
    return str(folder.joinpath(f"{file}.lua").read_text("utf-8"))


def _source(preamble: str, included: Mapping[str, str], text: str) -> str:
    """The text for Redis: names, then the files of `lua/include/`, then a function with the rest.

    For each variable that a new function takes from the one around it, Lua searches all variables
    that were taken from there before. What the one around has itself taken from outside needs no
    search. Lua lets a function take 60 variables.
    """
    shared = [each for name, each in included.items() if "/" not in name]
    own = [each for name, each in included.items() if "/" in name]
    return "\n".join([preamble, *shared, "return (function()", *own, text, "end)()"])


def _included(text: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """Names and texts of included files, each once and after its own includes."""
    for what, body in _LINE.findall(text):
        for part in body.split(", ") if what == "include" else ():
            if part not in known:
                known.add(part)
                found = _text(part if "/" in part else f"include/{part}")
                named = ", ".join(body for what, body in _LINE.findall(found) if what == "lazy")
                if named:
                    own = [each for _, each in _included(found, set(known))]
                    yield part, _lazily(named, "\n".join([*own, found]))
                else:
                    yield from _included(found, known)
                    yield part, found


def _lazily(named: str, text: str) -> str:
    """The text within a function that is called by the first of those `named` that is called."""
    stubs = [
        f"{name} = function(...) {named} = define() return {name}(...) end"
        for name in named.split(", ")
    ]
    return "\n".join(
        [f"local {named} do local function define()", text, f"return {named} end", *stubs, "end"]
    )


def _parts(name: str, body: str) -> Iterator[_Part]:
    end = 0
    for match in _NAME.finditer(body):
        if match.start() != end:
            break
        end = match.end()
        yield _Part(match[1], match[2], match[3])
    if end != len(body):
        raise ValueError(f"lua/{name}.lua: {body!r} is not a list of names")


def _counted(keys: Iterable[_Part], args: Iterable[_Part]) -> list[_Part]:
    """Lists that are followed by another one."""
    lists = [[part for part in parts if part.fields is not None] for parts in (keys, args)]
    return lists[0][:-1] + lists[1][:-1]


def _preamble(keys: tuple[_Part, ...], args: tuple[_Part, ...]) -> str:
    """Lua that names keys and arguments, on one line."""
    single = [part for part in args if part.fields is None]
    plain_keys = [part for part in keys if part.fields is None]
    counted = enumerate(_counted(keys, args), len(single) + 1)
    counts = {part.name: f"ARGV[{n}]" for n, part in counted}
    lines = [_named("KEYS", plain_keys), _named("ARGV", single)]
    lines += _lists("KEYS", len(plain_keys), [p for p in keys if p.fields is not None], counts)
    first = len(single) + len(counts)
    lines += _lists("ARGV", first, [p for p in args if p.fields is not None], counts)
    return " ".join(filter(None, lines))


def _named(table: str, parts: list[_Part]) -> str:
    if not parts:
        return ""
    values = ", ".join(f"{table}[{n}]" for n in range(1, len(parts) + 1))
    return f"local {', '.join(part.name for part in parts)} = {values}"


def _lists(table: str, before: int, parts: list[_Part], counts: Mapping[str, str]) -> Iterator[str]:
    """Loops that fill the lists; the table's first `before` entries are other values."""
    begin = str(before)
    for part in parts:
        count = counts.get(part.name)
        end = f"{begin} + {part.width} * {count}" if count else f"#{table}"
        fields = ", ".join(
            f"{field} = {table}[i + {n}]" for n, field in enumerate(part.fields or ())
        )
        row = f"{{{fields}}}" if fields else f"{table}[i]"
        yield (
            f"local {part.name} = {{}} for i = {begin} + 1, {end}, {part.width} do "
            f"{part.name}[#{part.name} + 1] = {row} end"
        )
        begin = end


def _plain(value: Any) -> Any:
    """A value for Redis: None and False are '', True is '1'. Any text can be sent."""
    if value is None or value is False:
        return ""
    if isinstance(value, str) and not value.isascii():
        return printable(value)
    return "1" if value is True else value


def _flat(part: _Part, rows: Iterable[Any]) -> list[Any]:
    if not part.fields:
        return [_plain(row) for row in rows]
    flat: list[Any] = []
    for row in rows:
        if len(row) != part.width:
            raise TypeError(f"a row of {part.name} is {', '.join(part.fields)}, not {row!r:.200}")
        flat += map(_plain, row)
    return flat
