"""Plans: where an image comes from, before anything is fetched or built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from hermes_plugins.images.dockerfile.evaluation import base_name, global_arguments
from hermes_plugins.images.dockerfile.instructions import KEPT_ALONE, Dockerfile, parse
from hermes_plugins.images.permission import SCRATCH
from hermes_queue.errors import EnvInfraError, SandboxRejected

REPLAYED = KEPT_ALONE | {"ARG", "CMD", "ENTRYPOINT", "ENV", "RUN", "SHELL", "USER", "WORKDIR"}
"""Instructions that need nothing but the image that they start from."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage that the result needs."""

    number: int
    """Of `Dockerfile.stages`."""
    base: int | str
    """Number of an earlier stage, or the name of an image."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What a Dockerfile needs."""

    kind: Literal["replay", "build"]
    """replay: one stage whose instructions can be repeated in a slot of its FROM image; there are
    no files of the context in it. build: anything else."""
    dockerfile: Dockerfile
    arguments: Mapping[str, str]
    """Variables of FROM lines."""
    stages: tuple[StagePlan, ...]
    """In the order in which to build them; the last one is the result."""

    @property
    def images(self) -> tuple[str, ...]:
        """The images that have to be had, as the Dockerfile names them."""
        names: dict[str, None] = {}
        for stage in self.stages:
            if isinstance(stage.base, str):
                names[stage.base] = None
            for origin in _origins(self.dockerfile, stage.number):
                if isinstance(origin, str):
                    names[origin] = None
        names.pop(SCRATCH, None)
        return tuple(names)

    @contextmanager
    def naming(self, image: str) -> Iterator[None]:
        """What keeps one of `images` from being had is raised with the line that names it."""
        try:
            yield
        except (SandboxRejected, EnvInfraError) as error:
            raise type(error)(f"Dockerfile line {self._line_of(image)}: {error}") from error

    def _line_of(self, image: str) -> int:
        for stage in self.stages:
            lines = self.dockerfile.stages[stage.number]
            if stage.base == image:
                return lines.start.line
            for each in lines.instructions:
                if each.word == "COPY" and each.flags.get("from") == image:
                    return each.line
        raise ValueError(image)

    def origin(self, name: str, before: int) -> int | str:
        """What `COPY --from=name` means in stage `before`: an earlier stage, or an image."""
        return int(name) if name.isdecimal() else _earlier(self.dockerfile, name, before)


def plan(text: str, given: Mapping[str, str] | None = None) -> BuildPlan:
    """What the Dockerfile `text` needs, with build arguments `given`.

    Raises:
        EnvBug: it is malformed; names the line.
        ConfigurationError: the extra `images` is not installed.
    """
    dockerfile = parse(text)
    arguments = global_arguments(dockerfile, given or {})
    bases = [
        _earlier(dockerfile, base_name(stage, dockerfile, arguments), number)
        for number, stage in enumerate(dockerfile.stages)
    ]
    needed: set[int] = set()
    waiting = [len(dockerfile.stages) - 1]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            found = [bases[number], *_origins(dockerfile, number)]
            waiting += [each for each in found if isinstance(each, int)]
    words = {each.word for number in needed for each in dockerfile.stages[number].instructions}
    kind: Literal["replay", "build"] = "build"
    if len(needed) == 1 and words <= REPLAYED and bases[-1] != SCRATCH:
        kind = "replay"
    stages = tuple(StagePlan(number, bases[number]) for number in sorted(needed))
    return BuildPlan(kind, dockerfile, arguments, stages)


def _earlier(dockerfile: Dockerfile, name: str, before: int) -> int | str:
    """The last stage of this name before stage `before`, else the image of the name."""
    for number in range(before - 1, -1, -1):
        if dockerfile.stages[number].name == name.lower():
            return number
    return name


def _origins(dockerfile: Dockerfile, number: int) -> list[int | str]:
    """What the COPY --from lines of a stage name. Raises EnvBug: a variable, a later stage."""
    found: list[int | str] = []
    for instruction in dockerfile.stages[number].instructions:
        name = instruction.flags.get("from") if instruction.word == "COPY" else None
        if name is None:
            continue
        if "$" in name or not name:
            raise instruction.refuse(f"--from={name} must be a stage or an image, not a variable")
        if name.isdecimal():
            if len(name) > 3 or int(name) >= number:
                raise instruction.refuse(f"--from={name[:100]}: there is no such stage before it")
            found.append(int(name))
        else:
            found.append(_earlier(dockerfile, name, number))
    return found
