"""The keys of a compose file that are used (Compose Specification, services), read leniently."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hermes_plugins.harbor.config import PathInBox, Variables

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?(?:(\d+)us)?")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_DURATION_S = 86_400.0
MAX_TEXT = 64 << 10


def _seconds(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) < 50 else None
    if match is None or not value:
        raise ValueError(f"{str(value)[:50]!r} is no duration such as 10s or 1m30s")
    hours, minutes, seconds, milli, micro = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + milli / 1e3 + micro / 1e6


def _mb(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return max(1, value >> 20)
    match = _BYTES.fullmatch(value) if isinstance(value, str) and len(value) < 50 else None
    if match is None:
        raise ValueError(f"{str(value)[:50]!r} is no size such as 512m or 2g")
    return max(1, int(float(match[1]) * _FACTORS[match[2].lower()]) >> 20)


def _words(value: Any) -> Any:
    """A command line, split as a shell would."""
    return shlex.split(value) if isinstance(value, str) and len(value) <= MAX_TEXT else value


def _pairs(value: Any) -> Any:
    """A mapping, also from a list of `NAME=value`; a name alone has no value here."""
    if isinstance(value, list):
        value = dict(str(each).partition("=")[::2] for each in value)
    if not isinstance(value, Mapping):
        return value
    return {str(name): _text(text) for name, text in value.items()}


def _text(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _named(value: Any) -> Any:
    """A mapping from a list of names."""
    if isinstance(value, list):
        return {str(each): {} for each in value}
    if isinstance(value, Mapping):
        return {str(name): {} if table is None else table for name, table in value.items()}
    return value


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Duration = Annotated[
    float, BeforeValidator(_seconds), Field(ge=0, le=MAX_DURATION_S, allow_inf_nan=False)
]
Megabytes = Annotated[int, BeforeValidator(_mb), Field(gt=0, le=1 << 24)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Pairs = Annotated[Variables, BeforeValidator(_pairs)]
Cpus = Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)]


class ComposeTable(BaseModel):
    """Any table of the file. Keys that nobody knows are kept, and named once."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


def _build(value: Any) -> Any:
    return {"context": value} if isinstance(value, str) else value


class ComposeBuild(ComposeTable):
    """`build`."""

    context: str = "."
    dockerfile: str = "Dockerfile"
    args: Pairs = Field(default_factory=dict)
    target: str | None = None


class ComposeHealthcheck(ComposeTable):
    """`healthcheck`; times are those that engines take if it names none."""

    test: str | tuple[str, ...] | None = None
    interval: Duration = 30.0
    timeout: Duration = 30.0
    start_period: Duration = 0.0
    start_interval: Duration = 5.0
    retries: int = Field(default=3, ge=1, le=10_000)
    disable: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The program; () = there is no check. Raises ValueError."""
        test = ("CMD-SHELL", self.test) if isinstance(self.test, str) else self.test or ()
        if self.disable or not test or test[0] == "NONE":
            return ()
        if test[0] == "CMD" and len(test) > 1:
            return test[1:]
        if test[0] == "CMD-SHELL" and len(test) == 2:
            return ("/bin/sh", "-c", test[1])
        raise ValueError("test must be a text, or a list that begins with CMD or CMD-SHELL")


class ComposeDependency(ComposeTable):
    """One entry of `depends_on`."""

    condition: Literal["service_started", "service_healthy", "service_completed_successfully"] = (
        "service_started"
    )
    required: bool = True
    restart: bool = False


class ComposeAttachment(ComposeTable):
    """One entry of `networks` of a service."""

    aliases: tuple[str, ...] = ()
    ipv4_address: str | None = None
    ipv6_address: str | None = None


class ComposeLimits(ComposeTable):
    """`deploy.resources.limits`."""

    cpus: Cpus | None = None
    memory: Megabytes | None = None
    pids: int | None = None


class ComposeResources(ComposeTable):
    """`deploy.resources`."""

    limits: ComposeLimits = Field(default_factory=ComposeLimits)
    reservations: Any = None


class ComposeDeploy(ComposeTable):
    """`deploy`."""

    resources: ComposeResources = Field(default_factory=ComposeResources)
    replicas: Any = None
    mode: Any = None


class ComposeService(ComposeTable):
    """One of `services`."""

    build: Annotated[ComposeBuild | None, BeforeValidator(_build)] = None
    image: str | None = Field(default=None, min_length=1, max_length=500)
    command: Words | None = None
    entrypoint: Words | None = None
    environment: Pairs = Field(default_factory=dict)
    healthcheck: ComposeHealthcheck | None = None
    depends_on: Annotated[dict[str, ComposeDependency], BeforeValidator(_named)] = Field(
        default_factory=dict
    )
    user: Annotated[
        str | None,
        BeforeValidator(_text_of_number),
        Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$"),
    ] = None
    working_dir: PathInBox | None = None
    hostname: str | None = None
    container_name: str | None = None
    networks: Annotated[dict[str, ComposeAttachment], BeforeValidator(_named)] = Field(
        default_factory=dict
    )
    volumes: tuple[Any, ...] = ()
    tmpfs: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    deploy: ComposeDeploy = Field(default_factory=ComposeDeploy)
    cpus: Cpus | None = None
    mem_limit: Megabytes | None = None

    @property
    def cores(self) -> float | None:
        """Its limit of processors."""
        return self.deploy.resources.limits.cpus or self.cpus

    @property
    def memory_mb(self) -> int | None:
        """Its limit of memory."""
        return self.deploy.resources.limits.memory or self.mem_limit
