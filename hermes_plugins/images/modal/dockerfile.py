"""Dockerfiles and contexts as Modal's builder takes them.

The SDK uploads the files that it finds in COPY lines, which it reads in their simplest form only.
So the whole context is uploaded for a first stage, and COPY lines take their files from there.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.copying import ContextCopy, write_engine_tar
from hermes_plugins.images.dockerfile.evaluation import CopyStep, evaluate
from hermes_plugins.images.dockerfile.instructions import Instruction, parse
from hermes_plugins.images.dockerfile.old_engines import for_old_engines
from hermes_plugins.images.plan import BuildPlan
from hermes_queue.errors import SandboxRejected
from hermes_queue.images.spec import OWN_ROOT, ImageConfig

CONTEXT = "hermes-queue-context"
"""Name of the stage with the context."""
END = (f"LABEL {OWN_ROOT}=1", "USER root", "ENTRYPOINT []")
"""Last lines of every image: Modal starts our own programs in it, as root."""


@dataclass(frozen=True, slots=True)
class ModalBuild:
    """What is given to the SDK."""

    text: str
    """Of the Dockerfile."""
    config: ImageConfig
    """Of the image that the task's own Dockerfile makes."""


def prepare(
    context: BuildContext,
    found: BuildPlan,
    bases: Mapping[str, ImageConfig],
    names: Mapping[str, str],
    folder: Path,
) -> ModalBuild:
    """Write the context to the empty `folder`, and the Dockerfile for it. Blocking.

    Args:
        context: The task's folder.
        found: The plan of its Dockerfile.
        bases: Configuration of each image that the plan names.
        names: What Modal pulls for each of them.
        folder: Gets the files that are uploaded.

    Raises:
        EnvBug: the Dockerfile is malformed, or misfits its context; names the line.
        SandboxRejected: it has what cannot be uploaded to Modal.
    """
    config, steps = _evaluated(found, bases)
    old = for_old_engines(context.dockerfile(), names)
    copies = [step for step in steps if step.source_stage is None and step.sources]
    lines = old.text.split("\n")
    if not copies and not old.files:
        return ModalBuild("\n".join([*lines, *END, ""]), config)
    for step in copies:
        _check_uploads(ContextCopy(step, context), step)
    archive = io.BytesIO()
    write_engine_tar(context, old, archive)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        tar.extractall(folder, filter="fully_trusted")  # noqa: S202 - our own, without links
    stages = parse(old.text).stages
    for instruction in (each for stage in stages for each in stage.instructions):
        if instruction.word in ("COPY", "ADD") and not _is_address(instruction):
            new = _from_context(instruction)
            lines[instruction.line - 1 : instruction.end_line] = [
                new,
                *[""] * (instruction.end_line - instruction.line),
            ]
    # Arguments of FROM lines come before the first stage.
    first = stages[0].start.line - 1
    lines[first:first] = [f"FROM scratch AS {CONTEXT}", "COPY . /"]
    return ModalBuild("\n".join([*lines, *END, ""]), config)


def _evaluated(
    found: BuildPlan, bases: Mapping[str, ImageConfig]
) -> tuple[ImageConfig, list[CopyStep]]:
    """The configuration that the plan leads to, and its COPY and ADD lines."""
    configs: dict[int, ImageConfig] = {}
    copies: list[CopyStep] = []
    for stage in found.stages:
        if isinstance(stage.base, int):
            base = configs[stage.base]
        else:
            base = bases.get(stage.base, ImageConfig())
        source = found.dockerfile.stages[stage.number]
        done = evaluate(source, base, found.dockerfile, found.arguments, {})
        configs[stage.number] = done.config
        copies += [step for step in done.steps if isinstance(step, CopyStep)]
    return configs[found.stages[-1].number], copies


def _check_uploads(copy: ContextCopy, step: CopyStep) -> None:
    """Refuse what would be another file in the image. Raises SandboxRejected."""
    word = "ADD" if step.unpack else "COPY"
    for source in copy.sources:
        paths = [path for path, _ in source.entries]
        for path, entry in source.entries:
            name = f"{source.name}/{path}".rstrip("/")
            why = ""
            if source.kind == "archive":
                why = "ADD of an archive"
            elif entry.kind == "link":
                why = f"the link {name}"
            elif entry.kind == "directory" and _is_empty(path, paths):
                why = f"the empty folder {name}"
            if why:
                raise SandboxRejected(
                    f"Dockerfile line {step.line}: {word}: {why[:300]} cannot be uploaded to "
                    "Modal: make it with RUN, or use another backend"
                )


def _is_empty(path: str, paths: Sequence[str]) -> bool:
    return not any(each.startswith(f"{path}/" if path else "") and each != path for each in paths)


def _is_address(instruction: Instruction) -> bool:
    """Whether an ADD line downloads."""
    addresses = ("http://", "https://", "git@")
    return instruction.word == "ADD" and instruction.arguments[0].startswith(addresses)


def _from_context(instruction: Instruction) -> str:
    """A COPY or ADD line as one that copies from a stage."""
    flags = dict(instruction.flags)
    origin = flags.pop("from", None)
    if origin is None:
        origin = CONTEXT
    elif origin.isdecimal():
        origin = str(int(origin) + 1)
    flags.pop("link", None)
    words = [f"--{name}={value}" for name, value in flags.items()]
    return " ".join(["COPY", *words, f"--from={origin}", json.dumps(list(instruction.arguments))])
