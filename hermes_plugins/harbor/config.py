"""`task.toml` of a Harbor task (schema 1.4, read leniently).

The keys are those of harbor 0.25, `harbor/models/task/config.py`. Older forms are taken, too:
`version`, `memory = "2G"`, `storage`, `allow_internet`. Unknown keys are kept and named once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from hermes_queue.errors import EnvBug

MAX_CONFIG_BYTES = 1 << 20
MAX_STEPS = 100
MAX_KEY_PARTS = 32
MAX_MB = 1 << 24
MAIN = "main"
"""The service of a task's own box."""

SCHEMA_MINOR = 4
"""Of the newest schema that is known here, 1.4."""
_VERSION = re.compile(r"1(?:\.([0-9]{1,3}))?(?:\.[0-9]{1,3})?")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG])i?B?\s*", re.IGNORECASE)
_IN_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_KEY_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_MANY_DOTS = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*\.[ \t]*){{{MAX_KEY_PARTS}}}")
_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Seconds = Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)]
Limit = Annotated[float, Field(allow_inf_nan=False)]
NetworkMode = Literal["public", "no-network", "allowlist"]


def _user(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


User = Annotated[
    str, BeforeValidator(_user), Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?$")
]
"""Name or uid of a user in the image."""


def _passable(variables: dict[str, str]) -> dict[str, str]:
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{name[:50]!r} cannot be passed to a program, or its value cannot")
    return variables


Variables = Annotated[dict[str, str], AfterValidator(_passable)]


def _within(path: str) -> str:
    if not path or "\0" in path or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a path without '..'")
    return path


PathInBox = Annotated[str, AfterValidator(_within)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


def _mb(size: str) -> int:
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ValueError(f"{size!r} is not a size such as '2G' or '512M'")
    try:
        return int(float(match[1]) * _IN_MB[match[2].upper()])
    except OverflowError:
        raise ValueError("is a size that no box has") from None


class Healthcheck(_Table):
    """A command that exits with 0 as soon as the box is ready."""

    command: str
    interval_s: Seconds = Field(
        default=5.0, validation_alias=AliasChoices("interval_sec", "interval")
    )
    timeout_s: Seconds = Field(
        default=30.0, validation_alias=AliasChoices("timeout_sec", "timeout")
    )
    start_period_s: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        validation_alias=AliasChoices("start_period_sec", "start_period"),
    )
    start_interval_s: Seconds = Field(default=5.0, validation_alias="start_interval_sec")
    retries: int = Field(default=3, ge=1, le=10_000)


class _Phase(_Table):
    """What `[environment]`, `[agent]` and `[verifier]` can say about the network."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None


class EnvironmentTable(_Phase):
    """`[environment]` and `[verifier.environment]`: the box."""

    docker_image: str | None = Field(default=None, min_length=1)
    build_timeout_s: Seconds = Field(default=600.0, validation_alias="build_timeout_sec")
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0, le=MAX_MB)
    storage_mb: int | None = Field(default=None, gt=0, le=MAX_MB)
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: Any = None
    os: str = Field(default="linux", validation_alias=AliasChoices("os", "os_type"))
    env: Variables = Field(default_factory=dict)
    workdir: PathInBox | None = None
    healthcheck: Healthcheck | None = None
    mcp_servers: tuple[dict[str, Any], ...] = ()
    skills_dir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_older_keys(cls, table: Any) -> Any:
        if not isinstance(table, Mapping):
            return table
        table = dict(table)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = table.pop(old, None)
            if isinstance(size, str):
                table.setdefault(new, _mb(size))
            elif size is not None:
                table.setdefault(new, size)
        internet = table.pop("allow_internet", None)
        if internet is not None and table.get("allowed_hosts") is None:
            table.setdefault("network_mode", "public" if internet else "no-network")
        return table


class AgentTable(_Phase):
    """`[agent]`."""

    timeout_s: Seconds | None = Field(default=None, validation_alias="timeout_sec")
    user: User | None = None


class CollectHook(_Table):
    """A command that runs after the agent, before artifacts are taken."""

    command: str
    service: str = MAIN
    timeout_s: Seconds = Field(default=60.0, validation_alias="timeout_sec")
    user: User | None = None


class VerifierTable(_Phase):
    """`[verifier]`."""

    timeout_s: Seconds = Field(default=600.0, validation_alias="timeout_sec")
    env: Variables = Field(default_factory=dict)
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: tuple[CollectHook, ...] = ()
    agent_project: bool = False
    """Whether the tests use the project that the agent works on (`uv run`, `npm test`), with its
    settings and environment. Not in the format; see docs/plugins/harbor.md."""

    @model_validator(mode="after")
    def _is_consistent(self) -> VerifierTable:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' contradicts [verifier.environment]")
        return self

    @property
    def separate(self) -> bool | None:
        """Whether the verifier has a box of its own; None = it says nothing about it."""
        if self.environment_mode is not None:
            return self.environment_mode == "separate"
        return True if self.environment is not None else None


class Artifact(_Table):
    """What a verifier in a box of its own gets of the agent's, at the same path."""

    source: PathInBox
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_a_path(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


class SolutionTable(_Table):
    """`[solution]`."""

    env: Variables = Field(default_factory=dict)


class StepTable(_Table):
    """One of `[[steps]]`."""

    name: str = Field(pattern=_STEP.pattern + "$")
    agent: AgentTable = Field(default_factory=AgentTable)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    min_reward: Limit | dict[str, Limit] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


class TaskConfig(_Table):
    """The whole file."""

    schema_version: str = Field(
        default="1.4", validation_alias=AliasChoices("schema_version", "version")
    )
    task: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    source: str | None = None
    environment: EnvironmentTable = Field(default_factory=EnvironmentTable)
    agent: AgentTable = Field(default_factory=AgentTable)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    solution: SolutionTable = Field(default_factory=SolutionTable)
    steps: tuple[StepTable, ...] = Field(default=(), max_length=MAX_STEPS)
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: tuple[Artifact, ...] = ()

    @model_validator(mode="after")
    def _steps_differ(self) -> TaskConfig:
        names = [step.name.lower() for step in self.steps]
        if len(names) != len(set(names)):
            raise ValueError("two steps have the same name")
        return self


def parse_config(text: str, place: str) -> TaskConfig:
    """Parse a `task.toml`.

    Raises:
        EnvBug: it is not TOML, or a value cannot be used; the message names the key.
    """
    if _MANY_DOTS.search(text):  # the parser's time grows with the square of a key's parts
        raise EnvBug(f"{place}: has a key of more than {MAX_KEY_PARTS} parts; correct the task")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with very many digits
        raise EnvBug(f"{place}: is not TOML: {error}") from error
    try:
        return TaskConfig.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise EnvBug(f"{place}: {key}: {first['msg']}; correct the task") from error


def newer_schema(version: str) -> Iterator[str]:
    """Yield a note if a task says that it has another schema than those that are read here."""
    if not (match := _VERSION.fullmatch(version)) or int(match[1] or 0) > SCHEMA_MINOR:
        shown = version[:40]
        yield f"schema_version {shown!r} is read as 1.{SCHEMA_MINOR}: what it adds has no effect"


def unknown_keys(table: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every key that no table of the schema has."""
    for key in table.model_extra or {}:
        yield f"{prefix}{key}"
    for name in type(table).model_fields:
        value = getattr(table, name)
        several = value if isinstance(value, tuple) else (value,)
        for index, each in enumerate(several):
            if isinstance(each, BaseModel):
                place = f"{name}.{index}" if isinstance(value, tuple) else name
                yield from unknown_keys(each, f"{prefix}{place}.")
