"""Settings: one small frozen section per component, read from `HERMES_QUEUE_*`.

    images.py         images of tasks
    model.py          model endpoints
    observability.py  metrics and logs
    sandbox.py        sandbox backends, lists of hosts
    prices.py         prices of slots
    redis.py          the connection to Redis, the memory of tasks in it
    resume.py         continuing trajectories of dead workers; places of stages
    section.py        what all sections have in common
    store.py          the object store

A section is built where it is used (`RedisSettings()`); nothing is read at import.
`docs/configuration.md` is generated from these classes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings

from hermes_queue import extensions
from hermes_queue.core import added
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings.model import EngineSettings, LimiterSettings, ModelSettings
from hermes_queue.settings.observability import LogSettings, MetricsSettings, OtelSettings
from hermes_queue.settings.prices import PriceSettings
from hermes_queue.settings.redis import RedisSettings, TaskMemorySettings
from hermes_queue.settings.resume import ResumeSettings, StageSettings
from hermes_queue.settings.sandbox import LocalSandboxSettings, ModalSettings, SandboxSettings
from hermes_queue.settings.section import PREFIX, Section, wrong_setting
from hermes_queue.settings.store import StoreSettings
from hermes_queue.wire.names import check_served_lane

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
"""Redis of workers and consumers if `HERMES_QUEUE_REDIS_URL` is not set."""


def _directory(for_root: str, variable: str, default: str) -> Path:
    """Our directory below the user's; for root, one outside /root, which slots cannot enter."""
    if os.geteuid() == 0:
        return Path(for_root)
    return Path(os.environ.get(variable) or Path.home() / default, "hermes-queue")


def _cache_root() -> Path:
    return _directory("/var/cache/hermes-queue", "XDG_CACHE_HOME", ".cache")


def _archive_root() -> Path:
    return _directory("/var/lib/hermes-queue", "XDG_DATA_HOME", ".local/share") / "archive"


class PathSettings(Section, env_prefix=PREFIX + "PATHS_"):
    """Directories on the worker's host."""

    cache: Path = Field(default_factory=_cache_root)
    """Interpreters, dependency environments, repositories, slots. It may be deleted while no worker
    runs, except for the spool inside, which may hold finished records. Default:
    `$XDG_CACHE_HOME/hermes-queue` or `~/.cache/hermes-queue`; for root
    `/var/cache/hermes-queue`."""
    replay: Path | None = None
    """Directory of records that jobs of `--agent replay` may name (`path=FILE`). Unset: none; a
    producer that runs everything on its own machine allows the file of its flag."""
    spool: Path | None = None
    """Finished records wait here until Redis accepts them. Default: `<cache>/spool`."""

    @property
    def spool_dir(self) -> Path:
        """The spool directory in use."""
        return self.spool or self.cache / "spool"


class LeaseSettings(Section, env_prefix=PREFIX + "LEASE_"):
    """Leases: how long a worker may be silent before its jobs run elsewhere."""

    ordered = (
        ("renew_s", 2, "duration_s"),
        ("sweep_s", 1, "duration_s"),
        ("mover_s", 1, "duration_s"),
    )

    duration_s: float = Field(default=40.0, gt=0)
    """Time without a renewal after which a job of a live worker is given to another."""
    renew_s: float = Field(default=10.0, gt=0)
    """Interval at which a worker renews the leases of its jobs and reports that it lives."""
    sweep_s: float = Field(default=5.0, gt=0)
    """Interval at which each worker takes back jobs whose lease has expired."""
    mover_s: float = Field(default=1.0, gt=0)
    """Interval at which due delayed jobs are published to their queue."""


class WorkerSettings(Section, env_prefix=PREFIX + "WORKER_"):
    """The worker process."""

    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Trajectories that run concurrently; overridden by `celery worker -c`."""
    lanes: str = "train"
    """Comma-separated lanes to serve. Among jobs of one priority class, earlier lanes come first.
    Overridden by the lanes of `celery worker -Q`."""
    stages: Literal["all", "agent", "verify"] = "all"
    """Stages that this worker runs, see docs/stages.md; overridden by `celery worker --stages`.
    agent: what its agents have done is graded by workers with `verify`, if there are any; these
    take nothing else."""
    imports: str = "*"
    """Comma-separated modules and packages whose envs, agents, parsers and token servers a job may
    name, as package.module:ATTRIBUTE or as plugins. *: all installed ones. The standard library is
    never allowed."""
    soft_shutdown_s: float = Field(default=30.0, ge=0)
    """After SIGTERM, running trajectories may finish for this long; then they are handed back."""
    load_timeout_s: float = Field(default=300.0, gt=0)
    """Time limit for importing a job's env and reading its row."""
    acquire_timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit for leasing a slot. A worker takes a job only with a slot in sight, so this ends a
    backend that hangs; it counts as a failure of the sandbox."""
    release_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for the reset of a slot before the record is published all the same. The slot is
    not used again before it has been reset."""
    stuck_s: float = Field(default=60.0, gt=0)
    """How long a stage may go on after its deadline. Then it is cancelled again, and the lease of
    the job is not renewed."""
    prepare_timeout_s: float = Field(default=7200.0, gt=0)
    """Time limit for building or downloading a job's environment, including the wait for other
    builds."""
    prepare_ahead: int = Field(default=1, ge=0)
    """Environments of waiting jobs that are prepared at once while all slots are busy; 0 = none."""
    exit_when_idle_s: float | None = Field(default=None, gt=0)
    """The worker ends after this long without a job. Unset: never."""
    stage_events_per_s: float = Field(default=5.0, ge=0)
    """Trajectories per second whose stages are reported to Flower; 0 = none."""
    watchdog_s: float = Field(default=5.0, gt=0)
    """Log the stack when the event loop is blocked for longer than this."""
    blocked_exit_s: float | None = Field(default=None, gt=0)
    """The worker ends itself (exit code 5) when the event loop is blocked for longer than this, and
    stops renewing leases after half of it. Unset: `HERMES_QUEUE_LEASE_DURATION_S`."""

    @field_validator("lanes")
    @classmethod
    def _are_served(cls, lanes: str) -> str:
        named = [lane.strip() for lane in lanes.split(",") if lane.strip()]
        if not named:
            raise ValueError("names no lane: write at least one, such as train")
        for lane in named:
            check_served_lane(lane)
        return lanes


class RetrySettings(Section, env_prefix=PREFIX + "RETRY_"):
    """Retries after infrastructure failures."""

    ordered = (("backoff_s", 1, "backoff_max_s"),)

    max_attempts: int = Field(default=6, ge=1)
    """Attempts of all causes together. A hand-back or the death of a worker does not count as an
    attempt."""
    attempts_sandbox: int = Field(default=3, ge=1)
    """Attempts that may fail because of the sandbox."""
    attempts_model: int = Field(default=4, ge=1)
    """Attempts that may fail because of the model endpoint, after the client's own retries."""
    attempts_env_infra: int = Field(default=3, ge=1)
    """Attempts that may fail because of a clone, download or installation."""
    attempts_deadline: int = Field(default=2, ge=1)
    """Attempts that may fail because a stage ran out of time, within the total deadline."""
    backoff_s: float = Field(default=5.0, gt=0)
    """Wait before attempt 2; doubles with each further attempt, with jitter of half of it."""
    backoff_max_s: float = Field(default=300.0, gt=0)
    """Longest wait before an attempt, however many came before."""
    quarantine_deaths: int = Field(default=2, ge=1)
    """Deaths of workers under one job (or lapsed leases of live ones) before it runs in quarantine,
    in smaller and smaller batches and finally alone."""
    max_deaths: int = Field(default=3, ge=1)
    """Deaths of workers that run the job alone, or lapsed leases of live ones, before it is
    published as failed."""
    evidence_bytes: int = Field(default=64 << 10, ge=0, le=4 << 20)
    """Packed size of the newest part of a failed attempt's transcript that is kept until the
    trajectory is published with it; 0 = none."""
    evidence_total_bytes: int = Field(default=256 << 10, ge=0, le=32 << 20)
    """Packed size of the kept transcripts of all failed attempts of a trajectory together, newest
    first."""


class BreakerSettings(Section, env_prefix=PREFIX + "BREAKER_"):
    """Circuit breakers: they pause a lane, or an endpoint in it, where attempts keep failing."""

    ordered = (("open_s", 1, "open_max_s"),)

    window_s: float = Field(default=120.0, gt=0)
    """Age up to which attempts are counted."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """Share of all attempts in the window that must have failed for one cause."""
    min_failures: int = Field(default=20, ge=1)
    """Number of failures below which the breaker never opens."""
    open_s: float = Field(default=60.0, gt=0)
    """Pause before one job is tried; doubles while that job fails."""
    open_max_s: float = Field(default=900.0, gt=0)
    """Longest pause of the lane before one job is tried."""


class ResultSettings(Section, env_prefix=PREFIX + "RESULTS_"):
    """Finished trajectories in Redis."""

    ordered = (
        ("soft_max_groups", 1, "hard_max_groups"),
        ("soft_max_bytes", 1, "hard_max_bytes"),
    )

    inline_max_bytes: int = Field(default=8 << 20, ge=1024)
    """Encoded size above which a record is refused if there is no object store."""
    finished_ttl_s: int = Field(default=7 * 86400, ge=60)
    """Time for which the state of a finished trajectory is kept, to recognise late duplicates."""
    retention_s: float = Field(default=3600.0, ge=0)
    """Minimum time for which groups stay in the stream, even if every consumer group has read
    them."""
    dead_retention_s: float = Field(default=30 * 86400.0, gt=0)
    """Time for which dead letters are kept."""
    trim_s: float = Field(default=10.0, gt=0)
    """Interval at which groups that every consumer group has read are deleted."""
    abandoned_after_s: float = Field(default=3600.0, gt=0)
    """Trimming stops waiting for a non-durable consumer group that reads nothing for this long."""
    soft_max_groups: int = Field(default=50_000, ge=1)
    """No new group is begun while the stream holds this many unread groups."""
    soft_max_bytes: int = Field(default=2 << 30, ge=1)
    """No new group is begun while bodies of unread groups have this many bytes."""
    hard_max_groups: int = Field(default=100_000, ge=1)
    """Finished trajectories wait in their worker's spool while the stream holds this many unread
    groups."""
    hard_max_bytes: int = Field(default=4 << 30, ge=1)
    """Finished trajectories wait in their worker's spool while bodies of unread groups have this
    many bytes."""


class ArchiveSettings(Section, env_prefix=PREFIX + "ARCHIVE_"):
    """The archive of results that are deleted from Redis after they were read."""

    enabled: bool = True
    """Whether workers archive results in files, for `hermes-queue export` and `replay()`. While the
    directory cannot be written, nothing is deleted from Redis."""
    directory: Path = Field(default_factory=_archive_root)
    """One directory per run; hosts may share it. Delete runs that you no longer need. Default:
    `$XDG_DATA_HOME/hermes-queue/archive` or `~/.local/share/hermes-queue/archive`; for root
    `/var/lib/hermes-queue/archive`."""


class ProducerSettings(Section, env_prefix=PREFIX + "PRODUCER_"):
    """Limits of producers."""

    item_inline_bytes: int = Field(default=2048, ge=0, le=128 << 10)
    """Size above which an item travels once, compressed, beside its jobs."""
    item_max_bytes: int = Field(default=4 << 20, ge=1024)
    """Size above which producers and workers refuse a row."""
    batch: int = Field(default=500, ge=1, le=10_000)
    """Jobs per round trip."""
    backlog_max: int = Field(default=200_000, ge=1)
    """Producers wait while this many jobs wait for workers; a job of 1 KB takes 2.5 KB of Redis."""


SECTIONS: tuple[type[BaseSettings], ...] = (
    RedisSettings,
    PathSettings,
    LeaseSettings,
    WorkerSettings,
    RetrySettings,
    ResumeSettings,
    StageSettings,
    BreakerSettings,
    SandboxSettings,
    LocalSandboxSettings,
    ModalSettings,
    PriceSettings,
    ModelSettings,
    LimiterSettings,
    EngineSettings,
    ResultSettings,
    StoreSettings,
    ArchiveSettings,
    ProducerSettings,
    TaskMemorySettings,
    MetricsSettings,
    LogSettings,
    OtelSettings,
)


__all__ = [
    "DEFAULT_REDIS_URL",
    "PREFIX",
    "SECTIONS",
    "ArchiveSettings",
    "BreakerSettings",
    "EngineSettings",
    "LeaseSettings",
    "LimiterSettings",
    "LocalSandboxSettings",
    "LogSettings",
    "MetricsSettings",
    "ModalSettings",
    "ModelSettings",
    "OtelSettings",
    "PathSettings",
    "PriceSettings",
    "ProducerSettings",
    "RedisSettings",
    "ResultSettings",
    "ResumeSettings",
    "RetrySettings",
    "SandboxSettings",
    "StageSettings",
    "StoreSettings",
    "TaskMemorySettings",
    "WorkerSettings",
    "check_environment",
    "private_directory",
    "runtime_directory",
    "sections",
    "variable_names",
]


def sections() -> tuple[type[BaseSettings], ...]:
    """The core's sections and those of all plugins.

    Raises:
        ConfigurationError: a plugin's section cannot be imported.
    """
    return (*SECTIONS, *added("settings"))


def check_environment(backend: str | None = None) -> None:
    """Build every section once, so that an invalid variable is reported before work starts.

    Plugins are read if a variable is set that the core does not know.

    Args:
        backend: sandbox backend whose settings are known besides ours; None = the one that is set.

    Raises:
        ConfigurationError: names the variable, the problem with its value, and the reference
            page.
    """
    found = (*SECTIONS, *_sections_of_backend(backend))
    if _unknown_names(variable_names(found)):
        found = (*dict.fromkeys((*sections(), *found)),)
        _refuse_unknown_names(variable_names(found))
    for section in found:
        try:
            section()
        except ValidationError as error:
            raise wrong_setting(section, error) from None


def variable_names(of: Iterable[type[BaseSettings]]) -> list[str]:
    """Every environment variable that these sections read."""
    return [
        f"{section.model_config.get('env_prefix', '')}{field}".upper()
        for section in of
        for field in section.model_fields
    ]


def _sections_of_backend(name: str | None) -> Iterator[type[BaseSettings]]:
    """`SETTINGS` of a sandbox backend, if it is somebody else's."""
    name = name or os.environ.get(f"{PREFIX}SANDBOX_BACKEND", "")
    if name and name not in extensions.own("backend"):
        with suppress(ConfigurationError):  # reported when the backend is made
            module, _ = extensions.load_with_module("backend", name)
            section = getattr(module, "SETTINGS", None)
            if section is not None and section not in SECTIONS:
                yield section


def _unknown_names(known: Collection[str]) -> list[str]:
    return [n for n in os.environ if n.upper().startswith(PREFIX) and n.upper() not in known]


def _refuse_unknown_names(known: Collection[str]) -> None:
    """A misspelt variable would otherwise be ignored, and the run be another than was meant."""
    for name in _unknown_names(known):
        import difflib  # only for a mistake: every reader of results loads this module

        close = difflib.get_close_matches(name.upper(), known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigurationError(f"{name} is not a setting; {hint}see docs/configuration.md")


def private_directory(path: Path) -> Path:
    """Create `path` with mode 700 and return it. For state that no slot may see."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def runtime_directory() -> Path:
    """A short directory for unix sockets, whose paths are limited to 107 bytes."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base)
    return Path(tempfile.gettempdir())
