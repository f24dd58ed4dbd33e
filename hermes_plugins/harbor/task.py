"""A task folder, read: what the env needs to know of it, and why a task cannot run here."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hermes_plugins.harbor.compose.reader import ComposeTask, read_compose
from hermes_plugins.harbor.config import (
    MAIN,
    MAX_CONFIG_BYTES,
    Artifact,
    EnvironmentTable,
    Healthcheck,
    TaskConfig,
    VerifierTable,
    newer_schema,
    parse_config,
    unknown_keys,
)
from hermes_queue.errors import EnvBug

logger = logging.getLogger(__name__)

CONFIG, INSTRUCTION = "task.toml", "instruction.md"
INITIAL = "initial"
"""A folder beyond the format: its check.sh must succeed before the agent begins."""
COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
MAX_INSTRUCTION_BYTES = 1 << 20
_MAX_TEST_FILES = 200
ARTIFACTS = "/logs/artifacts"
"""What every verifier in a box of its own gets, beside the artifacts that the task names."""

GradingMode = Literal["separate", "transplant", "restart"]
"""From strict to lax, see `envs.harbor`."""

_WORKDIR = re.compile(r"^\s*WORKDIR\s+(/[^\s$\"']*)\s*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StepFiles:
    """What a step puts into the box before the agent works in it."""

    workdir: Path
    """Goes into the work directory; its setup.sh is then run there. It need not exist."""
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A task in the Harbor format. The folder must not change while this is used."""

    path: Path
    digest: str
    """See `hermes_plugins.harbor.tree.digest`; "" if it was not asked for."""
    config: TaskConfig
    instruction: str
    """Of a task with steps: that of the first one."""
    notes: tuple[str, ...] = ()
    """Keys that nobody knows, and a schema that is newer than ours."""
    context_digests: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Digest of each build context, by its path; see `ImageSpec.digest`. A missing one is computed
    whenever a slot is leased."""
    lease: object = field(default=None, repr=False, compare=False)
    """Keeps the folder in the cache while this is alive."""
    compose: ComposeTask | None = None
    """Services beside the agent's box. `config` is completed by what the file says of the box."""
    compose_problem: str = ""
    """Why the compose file cannot be used here."""

    @classmethod
    def read(cls, path: Path, digest: str = "", lease: object = None) -> TaskFolder:
        """Read a task folder. Blocking.

        Raises:
            EnvBug: it is not a task folder, or a value of its configuration cannot be used.
        """
        config = parse_config(_text(path / CONFIG, MAX_CONFIG_BYTES), str(path / CONFIG))
        notes = tuple(f"unknown key {key} in {CONFIG}" for key in unknown_keys(config))
        notes += tuple(newer_schema(config.schema_version))
        compose, config, problem = _with_compose(path / "environment", config)
        notes += compose.notes if compose else ()
        for note in notes:
            logger.warning("%s: %s", path, note, extra={"action": "task_key_unknown"})
        steps = config.steps
        place = path / "steps" / steps[0].name / INSTRUCTION if steps else path / INSTRUCTION
        text = instruction_of(place)
        return cls(
            path, digest, config, text, notes, lease=lease, compose=compose, compose_problem=problem
        )

    @property
    def environment(self) -> EnvironmentTable:
        """The agent's box."""
        return self.config.environment

    @property
    def verifier(self) -> VerifierTable:
        """What grades."""
        return self.config.verifier

    @property
    def context(self) -> Path | None:
        """The folder with the Dockerfile of the agent's box."""
        if self.compose is not None and self.compose.context is not None:
            return self.compose.context
        folder = self.path / "environment"
        return folder if (folder / "Dockerfile").is_file() else None

    @property
    def uploads_environment(self) -> bool:
        """Whether `environment/` is put into the work directory: it is not a build context."""
        folder = self.path / "environment"
        return folder.is_dir() and self.context is None and _compose_file(folder) is None

    @property
    def tests(self) -> Path:
        """The folder of the tests."""
        return self.path / "tests"

    @property
    def test_folders(self) -> tuple[Path, ...]:
        """The folders that together are /tests, the later ones over the earlier ones."""
        return (self.tests,) if self.tests.is_dir() else ()

    @property
    def has_test_script(self) -> bool:
        """Whether one of them has test.sh."""
        return any((folder / "test.sh").is_file() for folder in self.test_folders)

    @property
    def stages(self) -> tuple[StepFiles, ...]:
        """What steps put into the box, up to this one; see `hermes_plugins.harbor.steps`."""
        return ()

    @property
    def solution(self) -> Path | None:
        """The folder of the solution, if there is one."""
        folder = self.path / "solution"
        return folder if (folder / "solve.sh").is_file() else None

    @property
    def initial(self) -> Path | None:
        """The folder of what checks the box before the agent begins, if there is one."""
        folder = self.path / INITIAL
        return folder if (folder / "check.sh").is_file() else None

    @property
    def separate(self) -> bool:
        """Whether the task declares a verifier in a box of its own."""
        return bool(self.verifier.separate)

    @property
    def verifier_context(self) -> Path | None:
        """The folder with the Dockerfile of the verifier's own image."""
        own = self.separate and (self.tests / "Dockerfile").is_file()
        return self.tests if own else None

    @property
    def tests_are_baked(self) -> bool:
        """Whether the verifier's own image brings /tests along."""
        table = self.verifier.environment
        named = table is not None and table.docker_image is not None
        return self.separate and (named or self.verifier_context is not None)

    @property
    def workdir(self) -> str | None:
        """The work directory as far as the folder says it."""
        if self.environment.workdir:
            return self.environment.workdir
        if self.context is None or self.environment.docker_image:
            return None
        text = (self.context / "Dockerfile").read_bytes()[:MAX_CONFIG_BYTES]
        found = _WORKDIR.findall(text.decode(errors="replace"))
        return str(found[-1]) if found else None

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What a verifier in a box of its own gets."""
        named = self.config.artifacts
        if any(each.source.rstrip("/") == ARTIFACTS for each in named):
            return named
        return (Artifact(source=ARTIFACTS), *named)

    @property
    def scripts(self) -> str:
        """The text of the shell scripts that grade, to see what they need."""
        found = (path for folder in self.test_folders for path in sorted(folder.rglob("*.sh")))
        files = [path for path in found if path.is_file()][:50]
        texts = (_bytes(path, MAX_CONFIG_BYTES) for path in files)
        return "\n".join(text.decode("utf-8-sig", errors="replace") for text in texts)

    def tests_text(self) -> str:
        """The text of the tests, and the paths of artifacts: what the task names. Blocking."""
        files = [path for folder in self.test_folders for path in sorted(folder.rglob("*"))]
        texts = [_head(path) for path in files[:_MAX_TEST_FILES] if path.is_file()]
        return "\n".join([*texts, *(artifact.source for artifact in self.artifacts)])

    def missing(self) -> list[str]:
        """What a task has and this one has not; empty if it is whole."""
        return list(_missing(self))

    def unsupported(self) -> list[str]:
        """What it asks for that no slot here can have; empty if there is nothing."""
        return list(_unsupported(self))


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_CONFIG_BYTES).decode(errors="replace")


def _compose_file(folder: Path) -> Path | None:
    return next((folder / name for name in COMPOSE if (folder / name).is_file()), None)


def _with_compose(folder: Path, config: TaskConfig) -> tuple[ComposeTask | None, TaskConfig, str]:
    """The compose file of the agent's box, the configuration completed by it, and what is wrong."""
    if (path := _compose_file(folder)) is None:
        return None, config, ""
    try:
        compose = read_compose(path, config.environment)
    except EnvBug as error:  # producers skip and count such a task
        return None, config, str(error)
    update: dict[str, Any] = {"environment": compose.table}
    if compose.user is not None:
        for phase in ("agent", "verifier"):
            table = getattr(config, phase)
            update[phase] = table.model_copy(update={"user": table.user or compose.user})
    return compose, config.model_copy(update=update), ""


def instruction_of(place: Path) -> str:
    """The text of an instruction. Raises EnvBug if there is none."""
    if not place.is_file():
        raise EnvBug(f"{place}: is missing; without it an agent does not know its task")
    instruction = _text(place, MAX_INSTRUCTION_BYTES).strip()
    if not instruction:
        raise EnvBug(f"{place}: is empty; without it an agent does not know its task")
    return instruction


def _missing(task: TaskFolder) -> Iterator[str]:
    has_image = task.environment.docker_image is not None or task.context is not None
    if not has_image and not task.compose_problem:
        yield "environment: has no Dockerfile, and environment.docker_image names no image"
    if not task.tests_are_baked and not task.has_test_script:
        yield "tests/test.sh: is missing; nothing could grade the task"


def _unsupported(task: TaskFolder) -> Iterator[str]:
    if task.compose_problem:
        yield task.compose_problem
    if compose := _compose_file(task.tests):
        yield f"tests/{compose.name}: a verifier of several containers is not supported"
    yield from _beyond(task.environment, "environment")
    if task.verifier.environment is not None:
        yield from _beyond(task.verifier.environment, "verifier.environment")
    services = {hook.service for hook in task.verifier.collect}
    services |= {each.service or MAIN for each in task.config.artifacts}
    known = {each.name for each in task.compose.services} if task.compose else set()
    for service in sorted(services - known - {MAIN}):
        yield f"service {service!r}: environment/{COMPOSE[0]} has no such service"
    if task.config.steps and known:
        yield "steps: services beside the box would begin anew with each step"


def _beyond(table: EnvironmentTable, name: str) -> Iterator[str]:
    if table.os.lower() != "linux":
        yield f"{name}.os: {table.os!r} is not supported, only linux"
    if table.gpus or table.tpu:
        yield f"{name}: slots with an image have no GPU or TPU"
    if table.mcp_servers:
        yield f"{name}.mcp_servers: MCP servers are not provided to agents"


def _bytes(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise EnvBug(f"{path}: is missing; a task folder has one") from None
    except OSError as error:
        raise EnvBug(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise EnvBug(f"{path}: has more than {max_bytes} bytes")
    return data


def _text(path: Path, max_bytes: int) -> str:
    """A file for people. Raises EnvBug: as `_bytes`, or it is not UTF-8."""
    data = _bytes(path, max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"line {line} is not UTF-8, byte {data[error.start]:#x}"
        raise EnvBug(f"{path}: {what}; save it as UTF-8") from error
