"""Settings: one small frozen section per component, read from `HERMES_QUEUE_*`.

    hosts.py          lists of hosts
    model.py          model endpoints
    observability.py  metrics and logs
    sandbox.py        sandbox backends
    section.py        what all sections share
    store.py          the object store

A section is built where it is used (`RedisSettings()`); nothing is read at import.
`docs/configuration.md` is generated from these classes.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings.model import LimiterSettings, ModelSettings
from hermes_queue.settings.observability import LogSettings, MetricsSettings
from hermes_queue.settings.sandbox import LocalSandboxSettings, ModalSettings, SandboxSettings
from hermes_queue.settings.section import PREFIX
from hermes_queue.settings.store import StoreSettings
from hermes_queue.wire.names import check_served_lane

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
"""Where workers and consumers look when `HERMES_QUEUE_REDIS_URL` is not set."""


def _cache_root() -> Path:
    """Where caches lie: the user's cache directory; for root one that slots can reach.

    Slots run as an unprivileged uid when the worker is root, and /root is closed to it.
    """
    if os.geteuid() == 0:
        return Path("/var/cache/hermes-queue")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hermes-queue"


class RedisSettings(BaseSettings):
    """The Redis that holds queues, ledger and results."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "REDIS_", frozen=True)

    url: SecretStr | None = None
    """redis://, rediss:// or unix:// URL. Unset: producers run everything embedded."""

    @field_validator("url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            parts = urlsplit(url.get_secret_value())
            if parts.scheme not in ("redis", "rediss", "unix"):
                raise ValueError("must start with redis://, rediss:// or unix://")
            try:
                parts.port  # noqa: B018 - parsed on access
            except ValueError as error:
                raise ValueError("the port must be a number up to 65535") from error
        return url

    prefix: str = Field(default="hq:", pattern=r"^[A-Za-z0-9_.-]*:?$")
    """Key prefix of everything we write; deployments may share one database."""
    socket_timeout_s: float = Field(default=30.0, gt=0)
    connect_timeout_s: float = Field(default=5.0, gt=0)


class PathSettings(BaseSettings):
    """Directories on the worker's host."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "PATHS_", frozen=True)

    cache: Path = Field(default_factory=_cache_root)
    """Interpreters, dependency environments, repositories, slots. Safe to delete while no worker
    runs, but for the spool in it, which may hold finished records. Default:
    `$XDG_CACHE_HOME/hermes-queue` or `~/.cache/hermes-queue`; for root
    `/var/cache/hermes-queue`."""
    replay: Path | None = None
    """Files of records below it may be named by jobs of `--agent replay` (`path=FILE`). Unset:
    none; a producer that runs everything on its own machine allows the file of its flag."""
    spool: Path | None = None
    """Finished records wait here until Redis has them. Default: `<cache>/spool`."""

    @property
    def spool_dir(self) -> Path:
        """The spool in force."""
        return self.spool or self.cache / "spool"


class LeaseSettings(BaseSettings):
    """How long a worker may be silent before its jobs run elsewhere."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "LEASE_", frozen=True)

    duration_s: float = Field(default=40.0, gt=0)
    renew_s: float = Field(default=10.0, gt=0)
    sweep_s: float = Field(default=5.0, gt=0)
    mover_s: float = Field(default=1.0, gt=0)
    """How often delayed jobs that are due are published to their queue."""


class WorkerSettings(BaseSettings):
    """The worker process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "WORKER_", frozen=True)

    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Trajectories at once; `celery worker -c` wins over it."""
    lanes: str = "train"
    """Comma-separated lanes to serve, of jobs of one class of priority earlier lanes first; lanes
    that `celery worker -Q` names win over it."""
    imports: str = "*"
    """Comma-separated modules and packages whose envs, agents, parsers and token servers a job may
    name, as package.module:ATTRIBUTE or as plugins. *: all that are installed. Python's own never
    are."""
    soft_shutdown_s: float = Field(default=30.0, ge=0)
    """After SIGTERM running trajectories may finish for this long, then are handed back."""
    prepare_timeout_s: float = Field(default=7200.0, gt=0)
    """For a job's environment to be built or downloaded, waiting for other builds included."""
    exit_when_idle_s: float | None = Field(default=None, gt=0)
    """The worker ends after so long without a job. Unset: never."""
    stage_events_per_s: float = Field(default=5.0, ge=0)
    """So many trajectories a second tell Flower of each stage that they enter; 0 = none."""
    watchdog_s: float = Field(default=5.0, gt=0)
    """The stack is logged when the event loop is blocked for longer."""
    blocked_exit_s: float | None = Field(default=None, gt=0)
    """The worker ends itself (exit code 5) when the event loop is blocked for longer, and renews no
    lease after half of it. Unset: as long as a lease, `HERMES_QUEUE_LEASE_DURATION_S`."""

    @field_validator("lanes")
    @classmethod
    def _are_served(cls, lanes: str) -> str:
        for lane in lanes.split(","):
            check_served_lane(lane.strip())
        return lanes


class RetrySettings(BaseSettings):
    """What happens after an infrastructure failure."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "RETRY_", frozen=True)

    max_attempts: int = Field(default=6, ge=1)
    """Over all causes. A hand-back or the death of a worker is no attempt."""
    attempts_sandbox: int = Field(default=3, ge=1)
    """Attempts that may end with a failure of the sandbox."""
    attempts_model: int = Field(default=4, ge=1)
    """Likewise of the model's endpoint, after the client's own retries."""
    attempts_env_infra: int = Field(default=3, ge=1)
    """Likewise of a clone, download or installation."""
    attempts_deadline: int = Field(default=2, ge=1)
    """Likewise of a stage that ran out of time, if the total deadline allows."""
    backoff_s: float = Field(default=5.0, gt=0)
    """Before attempt 2; doubles with each further attempt, with jitter of half of it."""
    backoff_max_s: float = Field(default=300.0, gt=0)
    quarantine_deaths: int = Field(default=2, ge=1)
    """Workers that may die under one job, or live on and let its lease lapse, before it runs in
    quarantine, at last alone."""
    max_deaths: int = Field(default=3, ge=1)
    """Likewise while they run it alone, before it is published as failed."""
    evidence_bytes: int = Field(default=64 << 10, ge=0, le=4 << 20)
    """Packed size up to which the transcript of a failed attempt is kept, its newest part, until
    the trajectory is published with it; 0 = none."""
    evidence_total_bytes: int = Field(default=256 << 10, ge=0, le=32 << 20)
    """Likewise of all failed attempts of a trajectory together, the newest ones first."""


class BreakerSettings(BaseSettings):
    """The circuit breaker of a lane: when one cause fails too many attempts, it pauses."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "BREAKER_", frozen=True)

    window_s: float = Field(default=120.0, gt=0)
    """How far back attempts count."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """Share of all attempts in the window that must have failed of one cause."""
    min_failures: int = Field(default=20, ge=1)
    """Fewer failures never open the breaker."""
    open_s: float = Field(default=60.0, gt=0)
    """How long the lane pauses before one job is tried; doubles while that fails."""
    open_max_s: float = Field(default=900.0, gt=0)


class ResultSettings(BaseSettings):
    """Finished trajectories in Redis."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "RESULTS_", frozen=True)

    inline_max_bytes: int = Field(default=8 << 20, ge=1024)
    """Encoded size above which a record is refused, unless there is an object store."""
    finished_ttl_s: int = Field(default=7 * 86400, ge=60)
    """How long the state of a finished trajectory is kept to answer late duplicates."""
    retention_s: float = Field(default=3600.0, ge=0)
    """Groups stay in the stream for at least so long, also when everybody has read them."""
    dead_retention_s: float = Field(default=30 * 86400.0, gt=0)
    """How long dead letters are kept."""
    trim_s: float = Field(default=10.0, gt=0)
    """How often what everybody has read is deleted."""
    abandoned_after_s: float = Field(default=3600.0, gt=0)
    """A consumer group that is not durable and reads nothing for so long is not waited for."""
    soft_max_groups: int = Field(default=50_000, ge=1)
    """With so many unread groups in the stream no new group is begun."""
    soft_max_bytes: int = Field(default=2 << 30, ge=1)
    """Likewise with so many bytes of bodies."""
    hard_max_groups: int = Field(default=100_000, ge=1)
    """With so many, finished trajectories wait in their worker's spool."""
    hard_max_bytes: int = Field(default=4 << 30, ge=1)
    """Likewise with so many bytes of bodies."""


def _archive_root() -> Path:
    """Where results are kept that are deleted from Redis: data, not a cache."""
    if os.geteuid() == 0:
        return Path("/var/lib/hermes-queue/archive")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "hermes-queue" / "archive"


class ArchiveSettings(BaseSettings):
    """What becomes of results that are deleted from Redis because everybody has read them."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "ARCHIVE_", frozen=True)

    enabled: bool = True
    """Whether workers keep them in files, for `hermes-queue export` and `replay()`. While the
    directory cannot be written, nothing is deleted from Redis."""
    directory: Path = Field(default_factory=_archive_root)
    """One directory per run; hosts may share it. Remove what you do not need any more. Default:
    `$XDG_DATA_HOME/hermes-queue/archive` or `~/.local/share/hermes-queue/archive`; for root
    `/var/lib/hermes-queue/archive`."""


class ProducerSettings(BaseSettings):
    """Bounds of what producers may enqueue."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "PRODUCER_", frozen=True)

    item_inline_bytes: int = Field(default=2048, ge=0)
    """Larger items travel once, compressed, beside the job."""
    item_max_bytes: int = Field(default=4 << 20, ge=1024)
    """Larger rows are refused, by producers and by workers."""
    batch: int = Field(default=500, ge=1, le=10_000)
    """Jobs per round trip."""
    backlog_max: int = Field(default=200_000, ge=1)
    """Producers wait while so many jobs wait for workers; a job of 1 KB takes 3.3 KB of Redis."""


SECTIONS: tuple[type[BaseSettings], ...] = (
    RedisSettings,
    PathSettings,
    LeaseSettings,
    WorkerSettings,
    RetrySettings,
    BreakerSettings,
    SandboxSettings,
    LocalSandboxSettings,
    ModalSettings,
    ModelSettings,
    LimiterSettings,
    ResultSettings,
    StoreSettings,
    ArchiveSettings,
    ProducerSettings,
    MetricsSettings,
    LogSettings,
)


__all__ = [
    "DEFAULT_REDIS_URL",
    "PREFIX",
    "SECTIONS",
    "ArchiveSettings",
    "BreakerSettings",
    "LeaseSettings",
    "LimiterSettings",
    "LocalSandboxSettings",
    "LogSettings",
    "MetricsSettings",
    "ModalSettings",
    "ModelSettings",
    "PathSettings",
    "ProducerSettings",
    "RedisSettings",
    "ResultSettings",
    "RetrySettings",
    "SandboxSettings",
    "StoreSettings",
    "WorkerSettings",
    "check_environment",
    "private_directory",
    "runtime_directory",
    "variable_names",
]


def check_environment() -> None:
    """Build every section once, so that a wrong variable is named before work starts.

    Raises:
        ConfigurationError: names the variable, its value's problem and the reference page.
    """
    sections = (*SECTIONS, *_sections_of_backend())
    _refuse_unknown_names(variable_names(sections))
    for section in sections:
        try:
            section()
        except ValidationError as error:
            first = error.errors()[0]
            prefix = str(section.model_config.get("env_prefix", ""))
            name = prefix + "_".join(str(part) for part in first["loc"]).upper()
            raise ConfigurationError(
                f"{name}: {first['msg']}; see docs/configuration.md"
            ) from error


def variable_names(sections: Iterable[type[BaseSettings]] = SECTIONS) -> list[str]:
    """Every environment variable that these sections read; ours by default."""
    return [
        f"{section.model_config.get('env_prefix', '')}{field}".upper()
        for section in sections
        for field in section.model_fields
    ]


def _sections_of_backend() -> Iterator[type[BaseSettings]]:
    """`SETTINGS` of the sandbox backend that is set, if it is somebody else's."""
    name = os.environ.get(f"{PREFIX}SANDBOX_BACKEND", "")
    if name and name not in extensions.own("backend"):
        module = extensions.module_of("backend", name)
        with suppress(ImportError):  # said when the backend is made
            section = getattr(import_module(module), "SETTINGS", None) if module else None
            if section is not None and section not in SECTIONS:
                yield section


def _refuse_unknown_names(known: Collection[str]) -> None:
    """A misspelt variable would otherwise be ignored, and the run be another than was meant."""
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigurationError(f"{name} is no setting; {hint}see docs/configuration.md")


def private_directory(path: Path) -> Path:
    """Create `path` with mode 700 and return it. For state no slot may see."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def runtime_directory() -> Path:
    """A short directory for unix sockets, whose paths may have 107 bytes at most."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base)
    return Path(tempfile.gettempdir())
