"""The folders of a task's steps.

Each step is a task folder of its own: that of the whole task with the step's instruction, tests,
solution and settings over it, as the format says (harbor 0.25, `harbor/trial/multi_step.py`). So
everything that prepares, grades and cheats a task does the same with a step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from hermes_plugins.harbor.config import (
    AgentTable,
    EnvironmentTable,
    StepTable,
    TaskConfig,
    VerifierTable,
)
from hermes_plugins.harbor.task import INSTRUCTION, StepFiles, TaskFolder, instruction_of

STEPS = "steps"


@dataclass(frozen=True, slots=True)
class StepFolder(TaskFolder):
    """One step of a task. `instruction` is its own, `config` what holds in it."""

    number: int = 0

    @property
    def step(self) -> StepTable:
        """Its table in `task.toml`."""
        return self.config.steps[self.number]

    @property
    def folder(self) -> Path:
        """Its own folder in the task's."""
        return self.path / STEPS / self.step.name

    @property
    def is_last(self) -> bool:
        """Whether no step follows."""
        return self.number + 1 == len(self.config.steps)

    @property
    def tests(self) -> Path:
        """The folder of the tests whose Dockerfile, if any, is that of the verifier's image."""
        own = self.folder / "tests"
        return own if (own / "Dockerfile").is_file() else self.path / "tests"

    @property
    def test_folders(self) -> tuple[Path, ...]:
        """The task's tests, then the step's over them."""
        found = (self.path / "tests", self.folder / "tests")
        return tuple(folder for folder in found if folder.is_dir())

    @property
    def solution(self) -> Path | None:
        """The step's solution, else that of the task."""
        own = self.folder / "solution"
        folder = own if own.is_dir() else self.path / "solution"
        return folder if (folder / "solve.sh").is_file() else None

    @property
    def stages(self) -> tuple[StepFiles, ...]:
        """What this step and those before it put into the box."""
        return tuple(
            StepFiles(self.path / STEPS / table.name / "workdir", table.healthcheck)
            for table in self.config.steps[: self.number + 1]
        )


def is_later(task: TaskFolder) -> bool:
    """Whether it is a step that follows another one."""
    return isinstance(task, StepFolder) and task.number > 0


def views(task: TaskFolder) -> tuple[TaskFolder, ...]:
    """The folders of a task's steps; the task itself if it has none. Blocking.

    Raises:
        EnvBug: a step has no instruction.
    """
    if not task.config.steps:
        return (task,)
    shared = {field.name: getattr(task, field.name) for field in dataclasses.fields(TaskFolder)}
    found = []
    for number, step in enumerate(task.config.steps):
        folder = task.path / STEPS / step.name
        fields = shared | {
            "config": _merged(task.config, step, folder / "tests"),
            "instruction": instruction_of(folder / INSTRUCTION),
        }
        found.append(StepFolder(**fields, number=number))
    return tuple(found)


def _merged(task: TaskConfig, step: StepTable, tests: Path) -> TaskConfig:
    """The task's configuration as it holds in a step."""
    return task.model_copy(
        update={
            "agent": _over(task.agent, step.agent),
            "verifier": _verifier(task.verifier, step.verifier, tests),
            "artifacts": (*task.artifacts, *step.artifacts),
        }
    )


def _over(table: AgentTable, own: AgentTable) -> AgentTable:
    """What a step says counts, and else what the task says."""
    return table.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _verifier(table: VerifierTable, own: VerifierTable, tests: Path) -> VerifierTable:
    said = {name: getattr(own, name) for name in own.model_fields_set}
    separate = table.separate if own.separate is None else own.separate
    mode = None if separate is None else "separate" if separate else "shared"
    return table.model_copy(
        update={
            **said,
            "env": {**table.env, **own.env},
            "collect": (*table.collect, *own.collect),
            "environment_mode": mode,
            "environment": _verifiers_box(table, own, tests) if separate else None,
        }
    )


def _verifiers_box(
    table: VerifierTable, own: VerifierTable, tests: Path
) -> EnvironmentTable | None:
    """The step's box, else the task's. An image of its own counts more than one of the task."""
    box = own.environment or table.environment
    if box is None or (own.environment is not None and own.environment.docker_image):
        return box
    image = table.environment.docker_image if table.environment else None
    if (tests / "Dockerfile").is_file():
        image = None
    return box.model_copy(update={"docker_image": image})
