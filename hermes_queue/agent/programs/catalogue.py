"""Programs by name: bundled ones, and your own in a TOML file.

A producer finds the definition, and it travels with the run's jobs: workers need no copy of the
file. A definition with a lock is large, so it is stored once beside the rows, and jobs name it by
its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from hermes_queue.agent.programs.definition import Definition, checked_lock, read_definition
from hermes_queue.agent.programs.install import make_asset
from hermes_queue.agent.programs.program import Program
from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.wire.parameters import program_sha256

MAX_FILE_BYTES = 4 << 20
_LIKE_MAX = 8
"""Programs that may be based on each other."""
_PLACE = "presets/programs.toml"


class _Readable(Protocol):
    def read_text(self, encoding: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Packed:
    """A definition on its way to workers."""

    reference: dict[str, str]
    """The value of the job's parameter `program`: name, version and hash."""
    items: dict[str, bytes]
    """The definition by its hash, for `enqueue(items=...)`."""


def preset_names() -> tuple[str, ...]:
    """Names of the bundled programs."""
    return tuple(_presets())


def find_program(name: str) -> Definition:
    """The program called `name`: a preset, or `FILE.toml[:NAME]` with your own.

    Raises:
        ConfigurationError: there is none of this name, the file cannot be read, or the definition
            is invalid; the message names file, program, field and fix.
    """
    file, _, inner = name.rpartition(".toml")
    if not file or (inner and not inner.startswith(":")):
        return _defined(name, _presets(), _bundled, _PLACE)
    path = Path(f"{file}.toml").expanduser()
    tables = _tables(_read(path, str(path)), str(path))
    chosen = inner[1:] or (next(iter(tables)) if len(tables) == 1 else "")
    if not chosen:
        raise ConfigurationError(
            f"{path} has {len(tables)} programs: choose one with program={path}:NAME; it has "
            f"{', '.join(tables) or 'none ([programs.NAME])'}"
        )
    return _defined(chosen, tables, lambda lock: path.parent / lock, str(path))


def pack(definition: Definition) -> Packed:
    """The definition as jobs carry it."""
    data = codec.encode_item(definition.compact())
    sha256 = hashlib.sha256(data).hexdigest()
    reference = {"name": definition.name, "version": definition.version, "sha256": sha256}
    return Packed(reference, {sha256: codec.compress_item(data)})


def load_program(program: object) -> Program:
    """The program of a job, on the worker: a preset's name, or a definition.

    Raises:
        ModelConfigError: unknown or invalid; the message has the field and the fix.
    """
    if isinstance(program, str):
        if program.partition(":")[0].endswith(".toml"):
            raise ModelConfigError(
                f"program {program!r:.200}: workers open no files for jobs; send it with a "
                "producer, or with `pack` of hermes_queue.agent.programs.catalogue"
            )
        try:
            return make_program(find_program(program))
        except ConfigurationError as error:
            raise ModelConfigError(str(error)) from error
    if not isinstance(program, Mapping) or program_sha256({"program": program}):
        raise ModelConfigError(
            "agent command: params.program must be a preset's name or a whole definition; presets "
            f"are {', '.join(preset_names())}"
        )
    try:
        return make_program(read_definition(program))
    except ValueError as error:
        raise ModelConfigError(f"program {str(program.get('name'))[:100]!r}: {error}") from error


def make_program(definition: Definition) -> Program:
    """The program that a definition describes."""
    return Program(
        name=definition.name,
        version=definition.version,
        run=definition.run.strip(),
        dialect=definition.dialect,
        asset=make_asset(definition),
        env=definition.env,
        files=definition.files,
        keep=definition.keep,
        refusal_status=definition.refusal_status,
        answer=definition.answer,
    )


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return _tables(_read(_bundled("programs.toml"), _PLACE), _PLACE)


def _bundled(name: str) -> Any:
    return files(__package__).joinpath("presets", name)


def _read(path: _Readable, place: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{place}: cannot be read: {error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{place}: has more than {MAX_FILE_BYTES} bytes")
    return text


def _tables(text: str, place: str) -> dict[str, dict[str, Any]]:
    """The tables `[programs.NAME]` of a file."""
    import tomllib

    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{place}: is no TOML: {error}") from error
    found = data.pop("programs", None)
    if data or not isinstance(found, dict) or not all(isinstance(t, dict) for t in found.values()):
        raise ConfigurationError(
            f"{place}: must consist of tables [programs.NAME]; see docs/programs.md"
        )
    return found


def _defined(
    name: str, tables: Mapping[str, Mapping[str, Any]], locks: Any, place: str
) -> Definition:
    if name not in tables:
        where = "bundled program of this name" if place == _PLACE else f"such program in {place}"
        hint = "; your own: program=FILE.toml:NAME" if place == _PLACE else ""
        raise ConfigurationError(
            f"program {name!r:.200}: there is no {where}; there are {', '.join(tables)}{hint}"
        )
    try:
        return read_definition({**_merged(name, tables, locks, place, 0), "name": name})
    except ValueError as error:
        raise ConfigurationError(f"{place}: programs.{name}: {error}") from error


def _merged(
    name: str, tables: Mapping[str, Mapping[str, Any]], locks: Any, place: str, depth: int
) -> dict[str, Any]:
    """The table, upon that which it names in `like`, with its lock read."""
    table = dict(tables[name])
    where = f"{place}: programs.{name}"
    base: dict[str, Any] = {}
    like = table.pop("like", None)
    if like is not None:
        if depth >= _LIKE_MAX:
            raise ConfigurationError(f"{where}.like: leads in a circle")
        if isinstance(like, str) and like in tables and like != name:
            base = _merged(like, tables, locks, place, depth + 1)
        elif isinstance(like, str) and like in _presets() and place != _PLACE:
            base = find_program(like).compact()
        else:
            raise ConfigurationError(
                f"{where}.like: there is no program {like!r:.100}; presets are "
                f"{', '.join(preset_names())}"
            )
    if "lock" in table:
        raise ConfigurationError(f"{where}.lock: name the file of the lock in `requirements`")
    requirements = table.pop("requirements", None)
    if requirements is not None:
        if not isinstance(requirements, str):
            raise ConfigurationError(
                f"{where}.requirements: must be the path of a lock with hashes, beside this file; "
                "make it with `uv pip compile --generate-hashes --universal`"
            )
        table["lock"] = _lock(locks(requirements), f"{where}.requirements")
    for field in ("env", "files"):
        if isinstance(base.get(field), dict) and isinstance(table.get(field), dict):
            table[field] = {**base[field], **table[field]}
    return {**base, **table}


def _lock(path: _Readable, where: str) -> str:
    try:
        return checked_lock(_read(path, where))
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error
