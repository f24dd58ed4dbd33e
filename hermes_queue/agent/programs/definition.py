"""The definition of a program: what its author writes, and what travels with the jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from hermes_queue.agent.programs.templates import NEEDED, PLACEHOLDERS, placeholders

MAX_BYTES = 1 << 20
"""Largest definition as JSON, with its lock."""
MAX_FILES = 32
_OLDEST_MINOR = 10
"""Of the Pythons that pip runs with."""
_Template = Annotated[str, StringConstraints(max_length=64 << 10)]
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[\w,. -]*\])? *==")
_OTHER = re.compile(r"\s-(?!-hash=)|\$\{")
"""Options of a requirement but its hashes, and variables, which would be replaced."""
_HASH = re.compile(r"--hash=sha(256|384|512):[0-9a-f]{64,128}(\s|$)")


class Archive(BaseModel):
    """A .tar.gz with files of the program, e.g. a package of the npm registry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(max_length=2000)
    """https. Workers must be allowed to fetch it: `HERMES_QUEUE_LOCAL_BUILD_HOSTS`."""
    sha512: str = Field(pattern="^[0-9a-f]{128}$")
    machine: str | None = Field(default=None, pattern="^[a-z0-9_]{1,32}$")
    """Unpacked only where `uname -m` says so, e.g. `x86_64`; None = everywhere."""
    strip: int = Field(default=0, ge=0, le=8)
    """Leading directories of the paths in the archive that are left out."""

    @field_validator("url")
    @classmethod
    def _is_https(cls, url: str) -> str:
        if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
            raise ValueError("must be an https:// URL")
        return url


class Definition(BaseModel):
    """A program; docs/programs.md describes the fields.

    `run`, `self_test`, `env`, `keep` and both sides of `files` are templates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern="^[a-z0-9][a-z0-9._-]{0,62}$")
    version: str = Field(default="", max_length=100)
    run: _Template = Field(min_length=1)
    """Bash command line, run in the workspace."""
    dialect: Literal["chat", "responses", "messages"] = "chat"
    """The API that the program speaks; the endpoint serves all of them."""
    lock: str = Field(default="", max_length=MAX_BYTES)
    """A complete lock of its Python packages, each with hashes."""
    archives: tuple[Archive, ...] = Field(default=(), max_length=16)
    pythons: tuple[Annotated[str, StringConstraints(pattern=r"^3\.\d{1,2}$")], ...] = Field(
        default=("3.11", "3.12", "3.13"), min_length=1, max_length=16
    )
    """The interpreters that the lock is for: the worker's own is used if it is one of them, else
    the first."""
    imports: tuple[str, ...] = Field(default=(), max_length=4096)
    """Import names that its environment brings, if they are known beforehand: producers skip rows
    about one of them."""
    self_test: _Template = ""
    """Command line that must succeed after the installation, without network."""
    env: dict[str, _Template] = Field(default_factory=dict, max_length=256)
    files: dict[str, _Template] = Field(default_factory=dict, max_length=MAX_FILES)
    keep: tuple[_Template, ...] = Field(default=(), max_length=MAX_FILES)
    refusal_status: Literal[400, 401, 402, 403, 404, 429] = 401
    answer: str = Field(default="", pattern=r"^([A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64})?$")
    """`TOOL.ARGUMENT`, if its model ends by a call of a tool that takes the last message."""

    @field_validator("lock")
    @classmethod
    def _has_hashes(cls, lock: str) -> str:
        return checked_lock(lock)

    @field_validator("pythons")
    @classmethod
    def _can_be_installed_into(cls, pythons: tuple[str, ...]) -> tuple[str, ...]:
        for python in pythons:
            if int(python.removeprefix("3.")) < _OLDEST_MINOR:
                raise ValueError(
                    f"{python}: pip installs locks into Python 3.{_OLDEST_MINOR} or newer"
                )
        return pythons

    @field_validator("env")
    @classmethod
    def _is_a_name(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,255}", name):
                raise ValueError(f"{name!r:.80} is not the name of a variable")
        return env

    @model_validator(mode="after")
    def _has_its_placeholders(self) -> Self:
        seen: set[str] = set()
        for field, template in self._templates():
            for name in placeholders(template):
                if name not in PLACEHOLDERS:
                    raise ValueError(
                        f"{field}: {{{name}}} is no placeholder; there are "
                        f"{', '.join(f'{{{each}}}' for each in PLACEHOLDERS)}, and "
                        f"{{{{{name}}}}} stands for {{{name}}} itself"
                    )
                if field == "self_test" and name != "agent":
                    raise ValueError(f"self_test: has no {{{name}}}, only {{agent}}")
                if field != "self_test":
                    seen.add(name)
        if missing := [name for name in NEEDED if name not in seen]:
            raise ValueError(
                f"{{{missing[0]}}} is neither in run nor in env or files: the program would not "
                f"learn {_MEANING[missing[0]]}"
            )
        return self

    @model_validator(mode="after")
    def _has_paths_in_the_slot(self) -> Self:
        for field, path in (("files", path) for path in self.files):
            _check_path(field, path)
        for path in self.keep:
            _check_path("keep", path)
        return self

    @model_validator(mode="after")
    def _is_small(self) -> Self:
        if (size := len(self.model_dump_json())) > MAX_BYTES:
            raise ValueError(f"has {size} bytes; at most {MAX_BYTES} can travel with jobs")
        return self

    def _templates(self) -> Iterator[tuple[str, str]]:
        yield from (("run", self.run), ("self_test", self.self_test))
        yield from ((f"env.{name}", text) for name, text in self.env.items())
        for path, text in self.files.items():
            yield from (("files", path), (f"files.{path[:200]}", text))
        yield from (("keep", path) for path in self.keep)

    def compact(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)


_MEANING = {"task": "its task", "url": "where the model is", "key": "its key for the model"}


def read_definition(data: Mapping[str, Any]) -> Definition:
    """A definition, validated. Raises ValueError: `field: what is wrong`."""
    try:
        return Definition.model_validate(data)
    except ValidationError as error:
        # A misspelt field is what a missing one was meant to be.
        errors = error.errors(include_url=False)
        first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
        place = ".".join(str(part)[:100] for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        given = first["input"] if first["type"] == "extra_forbidden" or not place else ""
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(Definition.model_fields))
            raise ValueError(f"{place}: there is no such field; there are {known}") from error
        shown = f", not {json.dumps(given, default=str)[:80]}" if given and place else ""
        raise ValueError(f"{place}: {message}{shown}" if place else message) from error


@lru_cache(maxsize=16)
def checked_lock(lock: str) -> str:
    """Return `lock`. Raises ValueError: names the line that is not a pin with hashes."""
    for number, line in _logical_lines(lock):
        if not _PIN.match(line) or _OTHER.search(line):
            raise ValueError(
                f"line {number}, {line[:80]!r}: is not of the form NAME==VERSION --hash=...; "
                "options, URLs and ranges are refused, so that every worker installs the same"
            )
        if not _HASH.search(line):
            raise ValueError(
                f"line {number}, {line[:80]!r}: has no --hash; make the lock with `uv pip compile "
                "--generate-hashes --universal` or `pip-compile --generate-hashes`"
            )
    return lock


def bare_lock(lock: str) -> str:
    """The lines of a lock that were checked and nothing else: a comment can name an encoding."""
    return "".join(f"{line}\n" for _, line in _logical_lines(lock))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, without comments and blank ones, and their numbers."""
    start, parts = 0, [""]
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        parts.append(re.sub(r"(^|\s)#.*$", "", line).rstrip("\\").strip())
        if line.rstrip().endswith("\\"):
            continue
        if whole := " ".join(filter(None, parts)):
            yield start, whole
        start, parts = 0, [""]
    if whole := " ".join(filter(None, parts)):
        yield start, whole


def _check_path(field: str, path: str) -> None:
    inside = path.startswith(("{home}/", "{workspace}/", "/tmp/"))  # noqa: S108 - the slot's own
    if not inside or ".." in path.split("/") or path.endswith("/"):
        raise ValueError(f"{field}: {path!r:.100} must be a file below {{home}} or {{workspace}}")
