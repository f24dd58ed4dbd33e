"""What a stage of a Dockerfile does, given the configuration of the image that it starts from."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from posixpath import join, normpath

from hermes_plugins.images.dockerfile.expansion import Scope, check_variables
from hermes_plugins.images.dockerfile.instructions import (
    KEPT_ALONE,
    BuildStage,
    Dockerfile,
    Instruction,
)
from hermes_queue.images.spec import ImageConfig

SHELL: tuple[str, ...] = ("/bin/sh", "-c")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
RUN_SCRIPT = (
    'f=$(mktemp) && printf %s "$1" >"$f" && chmod 700 "$f" && "$f"; c=$?; rm -f "$f"; exit $c'
)
"""Runs a heredoc that begins with `#!`, its only argument."""
MAX_WORD_BYTES = 128 << 10
"""Of one argument of a program, on Linux."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODE = re.compile(r"[0-7]{3,4}")


@dataclass(frozen=True, slots=True)
class RunStep:
    """A RUN line."""

    line: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    user: str
    workdir: str
    network: bool


@dataclass(frozen=True, slots=True)
class CopyStep:
    """A COPY or ADD line."""

    line: int
    sources: tuple[str, ...]
    """Patterns of paths in the context or the other stage."""
    documents: tuple[tuple[str, bytes], ...]
    """Heredocs among the sources: name and content."""
    destination: str
    """Absolute; with a slash at the end if it must be a directory."""
    source_stage: str | None
    """COPY --from: name or number of a stage, or an image."""
    owner: str
    """--chown: user and group as in USER; "" = root."""
    mode: int | None
    unpack: bool
    """ADD: sources that are tar archives are unpacked."""


@dataclass(frozen=True, slots=True)
class WorkdirStep:
    """A WORKDIR line: the directory is made where it is missing."""

    line: int
    path: str
    owner: str = ""
    """Of what is made: the stage's user, as with BuildKit and Podman; "" = root, which Docker's
    older builder takes always."""


DockerfileStep = RunStep | CopyStep | WorkdirStep


@dataclass(frozen=True, slots=True)
class StageResult:
    """The steps of a stage in their order, and the configuration at its end."""

    steps: tuple[DockerfileStep, ...]
    config: ImageConfig


def global_arguments(dockerfile: Dockerfile, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of FROM lines: ARG lines before them, with build arguments in their place.

    Raises:
        EnvBug: an ARG line is malformed; names it.
    """
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    known = {"TARGETPLATFORM": f"linux/{architecture}", "TARGETOS": "linux"}
    known |= {"TARGETARCH": architecture, "TARGETVARIANT": ""}
    known |= {f"BUILD{name[len('TARGET') :]}": value for name, value in known.items()}
    for instruction in dockerfile.arguments:
        for word in instruction.arguments:
            name, value = _argument(instruction, word, Scope(known, dockerfile.escape))
            if name in given or value is not None:
                known[name] = given.get(name, value or "")
        _check(instruction, known)
    return known


def base_name(stage: BuildStage, dockerfile: Dockerfile, arguments: Mapping[str, str]) -> str:
    """The image or stage in a FROM line. Raises EnvBug: names the line."""
    name = _expanded(stage.start, stage.base, Scope(arguments, dockerfile.escape))
    if not name:
        raise stage.start.refuse(f"the name of the image is empty: {stage.base}")
    return name


def evaluate(
    stage: BuildStage,
    base: ImageConfig,
    dockerfile: Dockerfile,
    arguments: Mapping[str, str],
    given: Mapping[str, str],
) -> StageResult:
    """The steps of `stage`.

    Args:
        stage: A stage of `dockerfile`.
        base: Configuration of the image or stage that it starts from.
        dockerfile: The whole file.
        arguments: From `global_arguments`.
        given: Build arguments.

    Raises:
        EnvBug: an instruction is malformed; names its line.
    """
    work = _Evaluation(base, dockerfile.escape, arguments, given)
    for instruction in stage.instructions:
        work.take(instruction)
    return StageResult(tuple(work.steps), work.config)


class _Evaluation:
    """The state between the lines of one stage."""

    def __init__(
        self,
        base: ImageConfig,
        escape: str,
        arguments: Mapping[str, str],
        given: Mapping[str, str],
    ) -> None:
        env = {**base.env}
        env.setdefault("PATH", DEFAULT_PATH)
        self.config = replace(base, env=env, workdir=base.workdir or "/")
        self.steps: list[DockerfileStep] = []
        self._escape = escape
        self._global, self._given = arguments, given
        self._arguments: dict[str, str] = {}
        self._shell: tuple[str, ...] = SHELL
        self._has_command = False
        self._methods: Mapping[str, Callable[[Instruction], None]] = {
            "ARG": self._arg,
            "ENV": self._env,
            "RUN": self._run,
            "COPY": self._copy,
            "ADD": self._copy,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "SHELL": self._set_shell,
            "CMD": self._command,
            "ENTRYPOINT": self._entrypoint,
        }

    def take(self, instruction: Instruction) -> None:
        if instruction.word in self._methods:
            self._methods[instruction.word](instruction)
        elif instruction.word not in KEPT_ALONE:
            raise instruction.refuse("this instruction is not supported")

    @property
    def _scope(self) -> Scope:
        return Scope({**self._arguments, **self.config.env}, self._escape)

    def _arg(self, instruction: Instruction) -> None:
        for word in instruction.arguments:
            name, value = _argument(instruction, word, self._scope)
            if name in self._given:
                value = self._given[name]
            elif value is None:
                value = self._global.get(name)
            if value is not None:
                self._arguments[name] = value
        _check(instruction, self._arguments)

    def _env(self, instruction: Instruction) -> None:
        scope, words = self._scope, instruction.arguments
        new = {}
        for name, value in zip(words[::3], words[1::3], strict=True):
            key = _expanded(instruction, name, scope)
            if not key or "=" in key:
                raise instruction.refuse(f"{name[:100]!r} is not the name of a variable")
            new[key] = _expanded(instruction, value, scope)
        env = {**self.config.env, **new}
        _check(instruction, env)
        self.config = replace(self.config, env=env)

    def _run(self, instruction: Instruction) -> None:
        if not instruction.arguments:
            raise instruction.refuse("it has no command")
        argv = run_argv(instruction, self._shell)
        if max(len(word.encode()) for word in argv) >= MAX_WORD_BYTES:
            raise instruction.refuse(f"the command has more than {MAX_WORD_BYTES >> 10} KiB")
        self.steps.append(
            RunStep(
                instruction.line,
                argv,
                {**self._arguments, **self.config.env},
                self.config.user,
                self.config.workdir,
                instruction.flags.get("network") != "none",
            )
        )

    def _copy(self, instruction: Instruction) -> None:
        scope, flags = self._scope, instruction.flags
        *sources, destination = instruction.arguments
        documents = {each.name: each for each in instruction.heredocs}
        plain, inline = [], []
        for source in sources:
            name = source.partition("<<")[2].lstrip("-").strip("\"'")
            if source.startswith("<<") and name in documents:
                document = documents[name]
                text = document.content
                if document.expand:
                    text = _bounded(instruction, scope.document, text)
                inline.append((name, text.encode()))
            else:
                plain.append(_expanded(instruction, source, scope))
        if found := next(
            (each for each in plain if re.match(r"(https?|git|ssh)://|git@", each)), ""
        ):
            raise instruction.refuse(
                f"downloads are not supported ({found[:100]}): use RUN with curl or git"
            )
        target = _expanded(instruction, destination, scope)
        needs_directory = target.endswith("/") or normpath(target) == "."
        target = normpath(join(self.config.workdir, target))
        target = "/" + target.lstrip("/") + ("/" if needs_directory else "")
        if len(plain) + len(inline) > 1 and not needs_directory:
            raise instruction.refuse("with several sources the destination must end with a slash")
        mode = flags.get("chmod")
        mode = None if mode is None else _expanded(instruction, mode, scope)
        if mode is not None and not _MODE.fullmatch(mode):
            raise instruction.refuse(f"--chmod={mode}: only octal modes such as 755 are supported")
        origin = flags.get("from")
        self.steps.append(
            CopyStep(
                instruction.line,
                tuple(plain),
                tuple(inline),
                "/" if target.strip("/") == "" else target,
                None if origin is None else _expanded(instruction, origin, scope),
                _expanded(instruction, flags.get("chown", ""), scope),
                None if mode is None else int(mode, 8),
                instruction.word == "ADD",
            )
        )

    def _workdir(self, instruction: Instruction) -> None:
        path = _expanded(instruction, instruction.arguments[0], self._scope)
        path = "/" + normpath(join(self.config.workdir, path)).lstrip("/")
        self.config = replace(self.config, workdir=path)
        self.steps.append(WorkdirStep(instruction.line, path, self.config.user))

    def _user(self, instruction: Instruction) -> None:
        user = _expanded(instruction, instruction.arguments[0], self._scope).strip()
        self.config = replace(self.config, user=user)

    def _set_shell(self, instruction: Instruction) -> None:
        if not instruction.arguments:
            raise instruction.refuse("it has no arguments")
        self._shell = instruction.arguments

    def _command(self, instruction: Instruction) -> None:
        self._has_command = True
        self.config = replace(self.config, command=_program(instruction, self._shell))

    def _entrypoint(self, instruction: Instruction) -> None:
        program = _program(instruction, self._shell)
        # As BuildKit: the command of a base image belongs to the base image's entry point.
        command = self.config.command if self._has_command else ()
        self.config = replace(self.config, entrypoint=program, command=command)


def run_argv(instruction: Instruction, shell: tuple[str, ...]) -> tuple[str, ...]:
    """The program of a RUN line; `shell` runs its shell form."""
    if instruction.is_json:
        return instruction.arguments
    text = instruction.arguments[0]
    documents = instruction.heredocs
    if len(documents) == 1 and re.fullmatch(r"<<-?\s*[\"']?[^\s\"'|&;<>()]+[\"']?", text.strip()):
        script = documents[0].content
        if script.startswith("#!"):
            return (*SHELL, RUN_SCRIPT, "sh", script)
        return (*shell, script)
    for document in documents:
        text = f"{text}\n{document.content}{document.name}"
    return (*shell, text)


def _program(instruction: Instruction, shell: tuple[str, ...]) -> tuple[str, ...]:
    if instruction.is_json or not instruction.arguments:
        return instruction.arguments
    return (*shell, instruction.arguments[0])


def _argument(instruction: Instruction, word: str, scope: Scope) -> tuple[str, str | None]:
    name, separator, value = word.partition("=")
    name = _expanded(instruction, name, scope)
    if not _NAME.fullmatch(name):
        raise instruction.refuse(f"{name[:100]!r} is not the name of a variable")
    return name, _expanded(instruction, value, scope) if separator else None


def _expanded(instruction: Instruction, text: str, scope: Scope) -> str:
    return _bounded(instruction, scope.word, text)


def _bounded(instruction: Instruction, expand: Callable[[str], str], text: str) -> str:
    try:
        return expand(text)
    except ValueError as error:
        raise instruction.refuse(str(error)[:300]) from error


def _check(instruction: Instruction, variables: Mapping[str, str]) -> None:
    try:
        check_variables(variables)
    except ValueError as error:
        raise instruction.refuse(str(error)) from error
