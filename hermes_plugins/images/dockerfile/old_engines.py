"""Dockerfiles for builders behind the API of container engines, which know less than BuildKit.

The builder of `POST /build` in Docker Engine, and Podman before version 4.9, know no heredocs, and
the first no `--chmod` and `--link`. Both discard what later lines do to the directories of a VOLUME
line, which BuildKit keeps, so it is left out. The same result is reached with instructions that
they know, and files added to the build context, see `copying.write_engine_tar`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from posixpath import basename, normpath

from hermes_plugins.images.dockerfile.evaluation import (
    SHELL,
    CopyStep,
    base_name,
    evaluate,
    global_arguments,
    run_argv,
)
from hermes_plugins.images.dockerfile.instructions import Dockerfile, Instruction, parse
from hermes_plugins.images.inside.tree import has_wildcards
from hermes_queue.images.spec import ImageConfig

FOLDER = ".hermes-queue"
"""Folder in the context for files that the rewritten text copies."""
MAX_LINE_CHARS = 60_000
"""These builders read lines of at most 65,535 bytes."""
_NAME = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class OldEngineBuild:
    """A Dockerfile that these builders know, and what it needs in the context beside the folder."""

    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files by path."""
    copies: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    """(folder, sources, mode): copies of sources in this folder, with another mode."""


def for_old_engines(
    text: str,
    substitutions: Mapping[str, str] | None = None,
    stages: Collection[int] | None = None,
) -> OldEngineBuild:
    """Rewrite a Dockerfile.

    Args:
        text: Of the Dockerfile.
        substitutions: For names of images in FROM and --from, as it gives them, other ones.
        stages: Numbers of those that the result needs; the others are emptied, since some of
            these builders would build them, too. None: all.

    Raises:
        EnvBug: it is malformed, or has what only BuildKit can do; names the line.
    """
    return _Rewriting(text, substitutions or {}, stages).result()


class _Rewriting:
    def __init__(
        self, text: str, substitutions: Mapping[str, str], needed: Collection[int] | None
    ) -> None:
        self._text, self._substitutions = text, substitutions
        self._dockerfile = parse(text)
        self._needed = range(len(self._dockerfile.stages)) if needed is None else needed
        self._arguments = global_arguments(self._dockerfile, {})
        self._files: dict[str, bytes] = {}
        self._copies: list[tuple[str, tuple[str, ...], int]] = []
        self._shell: tuple[str, ...] = SHELL
        self._documents = _documents(self._dockerfile, self._arguments)
        self._stages: set[str] = set()

    def result(self) -> OldEngineBuild:
        lines = self._text.removeprefix("\ufeff").split("\n")
        new: dict[int, str] = {}
        gone: set[int] = set()
        for number, stage in enumerate(self._dockerfile.stages):
            self._shell = SHELL
            if number not in self._needed:
                new[stage.start.line] = "FROM scratch"  # later stages keep their numbers
                for instruction in (stage.start, *stage.instructions):
                    gone |= set(range(instruction.line, instruction.end_line + 1))
                continue
            name = base_name(stage, self._dockerfile, self._arguments)
            if name.lower() not in self._stages:
                name = self._substitutions.get(name, name)
            new[stage.start.line] = f"FROM {name}" + (f" AS {stage.name}" if stage.name else "")
            gone |= set(range(stage.start.line, stage.start.end_line + 1))
            for instruction in stage.instructions:
                if (line := self._rewritten(instruction)) is not None:
                    if len(line.encode()) > MAX_LINE_CHARS:
                        raise instruction.refuse("it is too long for the builder of this engine")
                    new[instruction.line] = line
                    gone |= set(range(instruction.line, instruction.end_line + 1))
            if stage.name:
                self._stages.add(stage.name)
        kept = [
            new.get(number, line)
            for number, line in enumerate(lines, 1)
            if number in new or number not in gone
        ]
        return OldEngineBuild("\n".join(kept), self._files, tuple(self._copies))

    def _rewritten(self, instruction: Instruction) -> str | None:
        """The line in its place, or None if it may stay."""
        if instruction.word == "SHELL":
            self._shell = instruction.arguments
        if instruction.word == "VOLUME":
            return ""
        if instruction.word == "RUN" and (instruction.heredocs or instruction.flags):
            if instruction.flags.get("network") == "none":
                raise instruction.refuse("--network=none needs BuildKit")
            if not instruction.heredocs and not instruction.is_json:
                return f"RUN {_one_line(instruction.arguments[0])}"
            return f"RUN {json.dumps(run_argv(instruction, self._shell))}"
        if instruction.word in ("COPY", "ADD") and (instruction.heredocs or instruction.flags):
            return self._copy(instruction)
        return None

    def _copy(self, instruction: Instruction) -> str:
        *sources, destination = instruction.arguments
        origin, mode = instruction.flags.get("from"), instruction.flags.get("chmod")
        flags = []
        if owner := instruction.flags.get("chown"):
            flags.append(f"--chown={'0' if owner.startswith(':') else ''}{owner}")
        if origin is not None:
            is_stage = origin.isdecimal() or origin.lower() in self._stages
            name = origin if is_stage else self._substitutions.get(origin, origin)
            flags.append(f"--from={name}")
        folder = f"{FOLDER}/{instruction.line}"
        plain = [each for each in sources if not re.match(r"<<", each)]
        if instruction.heredocs:
            for name, content in self._documents[instruction.line]:
                self._files[f"{folder}/{name}"] = content
            sources = [*plain, *(f"{folder}/{each.name}" for each in instruction.heredocs)]
        if mode is not None:
            sources = [self._with_mode(instruction, plain, mode, folder, destination)]
        words = [*flags, json.dumps([*sources, destination])]
        return f"{instruction.word} {' '.join(words)}"

    def _with_mode(
        self,
        instruction: Instruction,
        plain: list[str],
        mode: str,
        folder: str,
        destination: str,
    ) -> str:
        """The one source in place of those whose mode is another."""
        if "from" in instruction.flags or not re.fullmatch(r"[0-7]{3,4}", mode):
            raise instruction.refuse("--chmod with --from, or not octal, needs BuildKit")
        if any("$" in each for each in plain):
            raise instruction.refuse("--chmod with variables in sources needs BuildKit")
        if instruction.word == "ADD":
            raise instruction.refuse("--chmod of ADD needs BuildKit")
        self._copies.append((folder, tuple(plain), int(mode, 8)))
        documents = [each.name for each in instruction.heredocs]
        names = [basename(normpath(each)) for each in plain] + documents
        is_one = len(names) == 1 and not has_wildcards("".join(plain))
        if is_one and names[0] != ".":
            return f"{folder}/{names[0]}"
        if not destination.endswith("/") and not is_one:
            raise instruction.refuse("the destination of several sources must end with a slash")
        return f"{folder}/"


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _documents(
    dockerfile: Dockerfile, arguments: Mapping[str, str]
) -> dict[int, tuple[tuple[str, bytes], ...]]:
    """The heredocs of COPY and ADD by line, with variables replaced.

    Raises EnvBug: one has a variable that the Dockerfile does not set; only its image might.
    """
    known = set(arguments)
    configs: dict[str, ImageConfig] = {}
    found: dict[int, tuple[tuple[str, bytes], ...]] = {}
    for stage in dockerfile.stages:
        base = configs.get(base_name(stage, dockerfile, arguments).lower(), ImageConfig())
        result = evaluate(stage, base, dockerfile, arguments, {})
        for instruction in stage.instructions:
            if instruction.word == "ENV":
                known |= set(instruction.arguments[::3])
            elif instruction.word == "ARG":
                known |= {word.partition("=")[0] for word in instruction.arguments}
            elif instruction.word in ("COPY", "ADD"):
                for document in instruction.heredocs:
                    for name in _NAME.findall(document.content) if document.expand else ():
                        if name not in known:
                            raise instruction.refuse(f"${name} in its heredoc is not set here")
        found |= {
            step.line: step.documents
            for step in result.steps
            if isinstance(step, CopyStep) and step.documents
        }
        if stage.name:
            configs[stage.name] = result.config
    return found
