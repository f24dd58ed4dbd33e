"""The text of a Dockerfile as stages and instructions. Text is hostile: all of it is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_plugins.images.extra import dockerfile_library
from hermes_queue.errors import EnvBug

MAX_CHARS = 512 << 10
MAX_LINES = 20_000
MAX_LINE_CHARS = 128 << 10
MAX_INSTRUCTIONS = 1000
MAX_STAGES = 50

KEPT_ALONE = frozenset("LABEL EXPOSE VOLUME HEALTHCHECK STOPSIGNAL MAINTAINER ONBUILD".split())
"""Instructions that change no file, nor what a slot of ours does."""
_FLAGS: Mapping[str, frozenset[str]] = {
    "FROM": frozenset({"platform"}),
    "RUN": frozenset({"mount", "network"}),
    "COPY": frozenset({"from", "chown", "chmod", "link"}),
    "ADD": frozenset({"chown", "chmod", "link"}),
    "HEALTHCHECK": frozenset("interval timeout start-period start-interval retries".split()),
}
_NEEDS_ARGUMENTS = frozenset("ADD ARG COPY ENV FROM SHELL USER WORKDIR".split())


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A document in the Dockerfile itself."""

    name: str
    content: str
    """Without leading tabs where the marker is `<<-`."""
    expand: bool
    """Whether variables in it are replaced, in COPY and ADD."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, not yet evaluated."""

    line: int
    """Its first line, from 1."""
    end_line: int
    word: str
    """In upper case."""
    arguments: tuple[str, ...]
    """As written; of ENV and LABEL: key, value, separator, and so on."""
    flags: Mapping[str, str] = field(default_factory=dict)
    is_json: bool = False
    heredocs: tuple[Heredoc, ...] = ()

    def refuse(self, why: str) -> EnvBug:
        """The error for what is wrong with it."""
        return EnvBug(f"Dockerfile line {self.line}: {self.word}: {why}")


@dataclass(frozen=True, slots=True)
class BuildStage:
    """A FROM line, and the instructions up to the next one."""

    start: Instruction
    base: str
    """As written."""
    name: str | None
    """In lower case."""
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file."""

    arguments: tuple[Instruction, ...]
    """The ARG lines before the first FROM."""
    stages: tuple[BuildStage, ...]
    escape: str
    """The escape character, a backslash or a backtick."""


def parse(text: str) -> Dockerfile:
    """Read a Dockerfile in BuildKit's grammar.

    Raises:
        EnvBug: it is malformed, too large, or has an instruction or flag that we do not support;
            names the line.
        ConfigurationError: the extra `images` is not installed.
    """
    _check_size(text)
    library = dockerfile_library()
    try:
        tree = library.parse_dockerfile_ast(text)
    except (ValueError, RecursionError) as error:
        raise EnvBug(str(error)[:500] or "the Dockerfile is nested too deeply") from error
    if len(tree.instructions) > MAX_INSTRUCTIONS:
        raise EnvBug(f"the Dockerfile has more than {MAX_INSTRUCTIONS} instructions")
    found = [_instruction(each, library) for each in tree.instructions]
    starts = [number for number, each in enumerate(found) if each.word == "FROM"]
    if not starts:
        raise EnvBug("the Dockerfile has no FROM line")
    if len(starts) > MAX_STAGES:
        raise EnvBug(f"the Dockerfile has more than {MAX_STAGES} stages")
    for each in found[: starts[0]]:
        if each.word != "ARG":
            raise each.refuse("only ARG may come before the first FROM")
    ends = [*starts[1:], len(found)]
    stages = [
        _stage(found[first], tuple(found[first + 1 : end]))
        for first, end in zip(starts, ends, strict=True)
    ]
    return Dockerfile(tuple(found[: starts[0]]), tuple(stages), tree.escape_token)


def _check_size(text: str) -> None:
    if len(text) > MAX_CHARS:
        raise EnvBug(f"the Dockerfile has more than {MAX_CHARS >> 10} KiB")
    if text.count("\n") > MAX_LINES:
        raise EnvBug(f"the Dockerfile has more than {MAX_LINES} lines")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE_CHARS:
            raise EnvBug(f"Dockerfile line {number} has more than {MAX_LINE_CHARS >> 10} KiB")
        if "\0" in line:
            raise EnvBug(f"Dockerfile line {number} has a NUL character")
        if line.startswith("#") and len(line) > 1000:  # a directive's pattern is quadratic
            raise EnvBug(f"Dockerfile line {number}: a comment of more than 1000 characters")


def _instruction(raw: Any, library: Any) -> Instruction:
    heredocs = tuple(
        Heredoc(
            each.name,
            library.chomp_heredoc_content(each.content) if each.chomp else each.content,
            each.expand,
        )
        for each in raw.heredocs
    )
    flags: dict[str, str] = {}
    found = Instruction(
        raw.start_line, raw.end_line, raw.name, tuple(raw.args), flags, raw.json, heredocs
    )
    for flag in raw.flags:
        name, _, value = flag.removeprefix("--").partition("=")
        if name not in _FLAGS.get(found.word, ()):
            raise found.refuse(f"the flag --{name} is not supported")
        if name == "mount" and "type=cache" not in value.split(","):
            raise found.refuse(f"--mount={value}: only type=cache is supported, without its cache")
        if name == "network" and value not in ("default", "none"):
            raise found.refuse(f"--network={value} is not supported")
        flags[name] = value
    if found.word in _NEEDS_ARGUMENTS and not found.arguments:
        raise found.refuse("it has no arguments")
    if found.word in ("COPY", "ADD") and len(found.arguments) < 2:
        raise found.refuse("it needs a source and a destination")
    if found.word == "SHELL" and not found.is_json:
        raise found.refuse('its arguments must be in JSON form, e.g. ["/bin/bash", "-c"]')
    return found


def _stage(start: Instruction, instructions: tuple[Instruction, ...]) -> BuildStage:
    match start.arguments:
        case (base,):
            return BuildStage(start, base, None, instructions)
        case (base, word, name) if word.upper() == "AS":
            return BuildStage(start, base, name.lower(), instructions)
    raise start.refuse("it must be FROM image, or FROM image AS name")
