"""Enqueueing jobs from any program, e.g. a trainer that samples on-policy."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypedDict, Unpack, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from hermes_queue.bodies import codec
from hermes_queue.broker import enqueue as sending
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.answers import RunPart, short_env
from hermes_queue.models import (
    AgentSpec,
    GroupPolicy,
    JudgeSpec,
    Limits,
    Provenance,
    TrajectoryJob,
)
from hermes_queue.settings import check_environment
from hermes_queue.wire.names import Name, check_run_id, group_key, make_ids
from hermes_queue.wire.provenance import checked_traceparent, current_traceparent

RUN_ID_MAX = 200
"""Group and trajectory ids add about 30 characters to the run id and may have 256."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Result of one call of `enqueue`."""

    run_id: str
    """Run id of the first job."""
    trajectory_ids: tuple[str, ...]
    """Ids of all jobs of the call, in order."""
    enqueued: int
    already: int
    """Enqueued by an earlier call, hence skipped."""


class JobOptions(TypedDict, total=False):
    """Properties that all jobs of one call share; the defaults are those of `TrajectoryJob`."""

    agent: AgentSpec
    limits: Limits
    group_size: int
    """Samples per item (default: 1)."""
    group_policy: GroupPolicy
    lane: str
    priority: int
    """0 is served first, 9 last, among the jobs of the run; a step counts like 15 minutes of
    waiting."""
    profile: str
    policy_version: str
    """Version of the policy that should sample. Requests carry it to the endpoint, and the record
    shows when another version answered."""
    judge: JudgeSpec | None
    """A model that judges each trajectory (docs/plugins/judge.md)."""


class EnqueueOptions(JobOptions, total=False):
    """Options of jobs, and of the run that they are of: its part of the slots."""

    team: str
    """Whose share of the slots the run uses (default: one of runs without a team)."""
    weight: float
    """Of the run among those of its team (default: 1)."""
    max_running: int
    """Trajectories of the run at once (default: unlimited)."""


def make_jobs(
    *,
    env: str,
    items: Iterable[Mapping[str, Any] | BaseModel],
    run_id: str | None = None,
    step: int | str | None = None,
    traceparent: str | None = None,
    **options: Unpack[JobOptions],
) -> list[TrajectoryJob]:
    """Make one job per item and sample; the same arguments give the same ids.

    Args:
        env: module in `envs/`, or `package.module:Attribute`; the workers must have it
            installed.
        items: rows, or instances of the env's `Item` model. Their `instance_id` names them, or
            else a hash of their content. An item that occurs twice gets two groups.
        run_id: name of the run; None = generate one.
        step: step of the trainer, part of the ids: in every step the same items are new groups,
            and a step enqueued again after a crash adds only the missing jobs.
        traceparent: W3C trace context that the trajectories belong to; None = that of this code,
            if any (docs/tracing.md).
        options: see `JobOptions`.

    Raises:
        ConfigurationError: an argument is invalid; the message names its field.
        InputError: an item is not an object, or two different items share an `instance_id`.
    """
    run_id = run_id if run_id is not None else new_run_id(short_env(env))
    _check_run_id(run_id)
    provenance = Provenance(
        producer="hermes_queue.enqueue", version=own_version(), traceparent=_trace(traceparent)
    )
    jobs = []
    for instance_id, key, item in _identified(items, step):
        group_id, trajectory_id = make_ids(run_id, key, 0)
        fields: dict[str, Any] = {**options, "env": env, "item": item, "run_id": run_id}
        fields |= {"group_id": group_id, "trajectory_id": trajectory_id}
        fields |= {"sample_index": 0, "instance_id": instance_id, "producer": provenance}
        first = _job(fields)
        samples = first.group_size + first.group_policy.extra_samples
        jobs += [first, *(first.sample(index) for index in range(1, samples))]
    return jobs


@overload
def enqueue(
    jobs: Iterable[TrajectoryJob],
    *,
    config: Mapping[str, Any] | None = ...,
    on_full: Callable[[int], None] | None = ...,
    url: str | None = ...,
    team: str = ...,
    weight: float = ...,
    max_running: int = ...,
) -> Enqueued: ...


@overload
def enqueue(
    *,
    env: str,
    items: Iterable[Mapping[str, Any] | BaseModel],
    run_id: str | None = ...,
    step: int | str | None = ...,
    traceparent: str | None = ...,
    on_full: Callable[[int], None] | None = ...,
    url: str | None = ...,
    **options: Unpack[EnqueueOptions],
) -> Enqueued: ...


def enqueue(
    jobs: Iterable[TrajectoryJob] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    on_full: Callable[[int], None] | None = None,
    url: str | None = None,
    **making: Any,
) -> Enqueued:
    """Enqueue jobs for the workers: finished jobs, or one per item and sample (`make_jobs`).

    Repeating a call adds only the jobs that are missing, identified by their trajectory ids. If
    this process dies halfway, workers publish the jobs it had claimed. While more jobs wait than
    `ProducerSettings.backlog_max`, the call waits; if the same thread also has to consume
    results, use `enqueue_async` beside `consume`. Celery is neither imported nor needed.

    Args:
        jobs: enqueued in batches as they come; consecutive samples of an item share one copy of
            it.
        config: configuration of the run, only with `jobs`. A later call with a different one is
            refused; None compares nothing. With `items` it is derived from the arguments.
        on_full: called every second with the number of waiting jobs while there are too many; an
            exception ends the call.
        url: URL of Redis; None = `HERMES_QUEUE_REDIS_URL`.
        making: arguments of `make_jobs`, in place of `jobs`; beside either, `team`, `weight` and
            `max_running` of the run, see `EnqueueOptions`.

    Raises:
        ConfigurationError: an argument or setting is invalid, the run was started with another
            configuration, or it is cancelled.
        InputError: see `make_jobs`.
        PayloadTooLarge: an item exceeds `ProducerSettings.item_max_bytes`; earlier batches stay.
        RedisUnavailable, RedisFull: some jobs may be enqueued; repeat the call.
    """
    return _send(jobs, config, on_full, url, making, threading.Event())


async def enqueue_async(
    jobs: Iterable[TrajectoryJob] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    on_full: Callable[[int], None] | None = None,
    url: str | None = None,
    **making: Any,
) -> Enqueued:
    """As `enqueue`, in a thread, which also iterates over `jobs` and calls `on_full`.

    Cancelling it stops after the current batch; repeat the call to enqueue the rest.
    """
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_send, jobs, config, on_full, url, making, stop)
    finally:
        stop.set()


class _Stopped(Exception):
    """The caller of `enqueue_async` was cancelled."""


def _send(
    jobs: Iterable[TrajectoryJob] | None,
    config: Mapping[str, Any] | None,
    on_full: Callable[[int], None] | None,
    url: str | None,
    making: dict[str, Any],
    stop: threading.Event,
) -> Enqueued:
    check_environment()
    part = RunPart.of(*(making.pop(name, None) for name in ("team", "weight", "max_running")))
    if (jobs is None) == (not making) or (making and config is not None):
        raise ConfigurationError("enqueue: pass jobs (and config=), or env= and items=")
    if making:
        making["run_id"] = making.get("run_id") or new_run_id(short_env(str(making.get("env"))))
        jobs = make_jobs(**making)
        config = _config_of(jobs[0]) if jobs else None

    def check(waiting: int, listener: Callable[[int], None] | None = None) -> None:
        if stop.is_set():
            raise _Stopped
        if listener:
            listener(waiting)

    def recorded() -> Iterator[TrajectoryJob]:
        for job in jobs or ():
            ids.append(job.trajectory_id)
            runs.setdefault(job.run_id)
            yield job

    ids: list[str] = []
    runs: dict[str, None] = {}
    with closing(Ledger.connect(url=url)) as ledger:
        report = sending.enqueue(
            recorded(),
            ledger=ledger,
            config=config,
            on_batch=check,
            on_full=lambda waiting: check(waiting, on_full),
            part=part,
        )
    run_id = next(iter(runs), making.get("run_id", ""))
    return Enqueued(run_id, tuple(ids), report.enqueued, report.already)


def _job(fields: dict[str, Any]) -> TrajectoryJob:
    try:
        return TrajectoryJob.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the job"
        raise ConfigurationError(f"enqueue: {place}: {first['msg']}") from None


def _identified(
    items: Iterable[Mapping[str, Any] | BaseModel], step: int | str | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (instance id, group key, item) of each item."""
    seen: dict[str, tuple[bytes, int]] = {}
    for number, given in enumerate(items):
        try:
            if isinstance(given, BaseModel):
                given = given.model_dump(mode="json", by_alias=True, round_trip=True)
            item = dict(given)
            encoded = codec.encode_item(item)
        except (TypeError, ValueError) as error:
            raise InputError(f"enqueue: item {number} is not a JSON object: {error}") from error
        named = item.get("instance_id")
        instance_id = str(named) if named else f"item-{hashlib.sha256(encoded).hexdigest()[:16]}"
        known, times = seen.get(instance_id, (encoded, 0))
        if known != encoded:
            raise InputError(
                f"enqueue: item {number}: an earlier item with other content has the same "
                f"instance_id {instance_id!r}; ids must be unique"
            )
        seen[instance_id] = encoded, times + 1
        yield instance_id, group_key(instance_id, repetition=times + 1, step=step), item


def run_config(env: str, **options: Unpack[JobOptions]) -> dict[str, Any]:
    """What all calls and producers of one run id must have in common.

    Lane, priority, endpoint, policy version and the items may differ.
    """
    agent, judge = options["agent"], options.get("judge")
    return {
        "env": env,
        "agent": agent.kind,
        "model": agent.model,
        "sampling": agent.sampling,
        "agent_params": agent.params,
        "group_size": options.get("group_size"),
        "group_policy": options["group_policy"].model_dump(mode="json"),
        "limits": options["limits"].model_dump(mode="json"),
        "profile": options["profile"],
        **({"judge": judge.model_dump(mode="json")} if judge else {}),
    }


def _config_of(job: TrajectoryJob) -> dict[str, Any]:
    return run_config(
        job.env,
        agent=job.agent,
        group_size=job.group_size,
        group_policy=job.group_policy,
        limits=job.limits,
        profile=job.profile,
        judge=job.judge,
    )


def _trace(given: str | None) -> str | None:
    if given is None:
        return current_traceparent()
    if checked_traceparent(given) is None:
        raise ConfigurationError(f"enqueue: traceparent {given[:80]!r} is no W3C trace context")
    return given


def _check_run_id(run_id: str) -> None:
    try:
        TypeAdapter(Name).validate_python(run_id)
    except ValidationError:
        raise ConfigurationError(
            f"enqueue: run_id {run_id!r}: use letters, digits and . _ : - and begin with a letter "
            "or digit"
        ) from None
    if "/" in run_id or len(run_id) > RUN_ID_MAX:
        raise ConfigurationError(
            f"enqueue: run_id {run_id!r}: use at most {RUN_ID_MAX} characters, and no /"
        )
    try:
        check_run_id(run_id)
    except ValueError as error:
        raise ConfigurationError(f"enqueue: {error}") from None


def new_run_id(name: str) -> str:
    """Return an unused run id: `name`, the time in UTC, and two random bytes in hex."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{name}-{moment}-{secrets.token_hex(2)}"


def own_version() -> str:
    """Return the installed version of this package; "" if it is not installed."""
    try:
        return version("hermes-queue")
    except PackageNotFoundError:  # a bare checkout on sys.path
        return ""
