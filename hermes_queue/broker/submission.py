"""Sending jobs from a program of one's own, e.g. a trainer that samples on-policy."""

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
from hermes_queue.broker import messages
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.answers import short_env
from hermes_queue.models import (
    AgentSpec,
    GroupPolicy,
    Limits,
    Provenance,
    TrajectoryJob,
)
from hermes_queue.settings import check_environment
from hermes_queue.wire.names import Name, check_run_id, group_key, make_ids

RUN_ID_MAX = 200
"""Group and trajectory ids are the run id and some 30 characters more, of 256."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of the jobs of one call."""

    run_id: str
    """Of the first job."""
    trajectory_ids: tuple[str, ...]
    """Of all jobs of the call, in order."""
    enqueued: int
    already: int
    """Enqueued by an earlier call, hence left alone."""


class JobOptions(TypedDict, total=False):
    """What the jobs of one call have in common; the defaults are those of `TrajectoryJob`."""

    agent: AgentSpec
    limits: Limits
    group_size: int
    """Samples per item (default: 1)."""
    group_policy: GroupPolicy
    lane: str
    priority: int
    """0 is served first, 9 last."""
    profile: str
    policy_version: str
    """The one that is wanted; the endpoint is told, and the record says when another one served."""


def make_jobs(
    *,
    env: str,
    items: Iterable[Mapping[str, Any] | BaseModel],
    run_id: str | None = None,
    step: int | str | None = None,
    **options: Unpack[JobOptions],
) -> list[TrajectoryJob]:
    """One job per item and sample, with ids that are the same for the same arguments.

    Args:
        env: module in `envs/`, or `package.module:Attribute`; the workers have to have it.
        items: rows, or instances of the env's `Item` model. They are named by their `instance_id`,
            without one by a hash of their content. An item that comes twice has two groups.
        run_id: names the run; None makes a name up.
        step: of the trainer. It is part of the ids: the same items are new groups in every step,
            and a step that is enqueued again after a crash enqueues only what is missing.
        options: see `JobOptions`.

    Raises:
        ConfigurationError: an argument does not fit; its field is named.
        InputError: an item is no object, or two items share an `instance_id`.
    """
    run_id = run_id if run_id is not None else new_run_id(short_env(env))
    _check_run_id(run_id)
    provenance = Provenance(producer="hermes_queue.enqueue", version=own_version())
    size = options.get("group_size", 1)
    policy = options.get("group_policy", GroupPolicy())
    jobs = []
    for instance_id, key, item in _identified(items, step):
        for index in range(size + policy.extra_samples):
            group_id, trajectory_id = make_ids(run_id, key, index)
            fields: dict[str, Any] = {**options, "env": env, "item": item, "run_id": run_id}
            fields |= {"group_id": group_id, "trajectory_id": trajectory_id}
            fields |= {"sample_index": index, "instance_id": instance_id, "producer": provenance}
            jobs.append(_job(fields))
    return jobs


@overload
def enqueue(
    jobs: Iterable[TrajectoryJob],
    *,
    config: Mapping[str, Any] | None = ...,
    on_full: Callable[[int], None] | None = ...,
    url: str | None = ...,
) -> Enqueued: ...


@overload
def enqueue(
    *,
    env: str,
    items: Iterable[Mapping[str, Any] | BaseModel],
    run_id: str | None = ...,
    step: int | str | None = ...,
    on_full: Callable[[int], None] | None = ...,
    url: str | None = ...,
    **options: Unpack[JobOptions],
) -> Enqueued: ...


def enqueue(
    jobs: Iterable[TrajectoryJob] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    on_full: Callable[[int], None] | None = None,
    url: str | None = None,
    **making: Any,
) -> Enqueued:
    """Send jobs to the workers: jobs of one's own, or one per item and sample (`make_jobs`).

    Repeating a call does nothing beyond what is missing: a job is known by its trajectory id. If
    this process dies on the way, workers publish what it had claimed. While more jobs wait than
    `ProducerSettings.backlog_max` the call waits for the workers; where the same thread also has to
    consume results, use `enqueue_async` beside `consume`. Nothing of Celery is imported or needed.

    Args:
        jobs: in batches as they come; all samples of an item in a row share one copy of it.
        config: of the run, for jobs of one's own: a later call with another one is refused; None
            compares nothing. With items it follows from the arguments.
        on_full: hears every second how many jobs wait, while they are too many; what it raises
            ends the call.
        url: of Redis; None takes `HERMES_QUEUE_REDIS_URL`.
        making: arguments of `make_jobs`, in place of `jobs`.

    Raises:
        ConfigurationError: an argument or setting does not fit, the run was begun with another
            configuration, or it is cancelled.
        InputError: see `make_jobs`.
        PayloadTooLarge: an item is over `ProducerSettings.item_max_bytes`; earlier batches stay.
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
    """As `enqueue`, in a thread, where `jobs` are taken and `on_full` is called, too.

    Cancelling it ends the sending after the present batch; repeat the call for what is missing.
    """
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_send, jobs, config, on_full, url, making, stop)
    finally:
        stop.set()


class _Stopped(Exception):
    """Nobody waits for the call any more."""


def _send(
    jobs: Iterable[TrajectoryJob] | None,
    config: Mapping[str, Any] | None,
    on_full: Callable[[int], None] | None,
    url: str | None,
    making: dict[str, Any],
    stop: threading.Event,
) -> Enqueued:
    check_environment()
    if (jobs is None) == (not making) or (making and config is not None):
        raise ConfigurationError("enqueue: give jobs (and config=), or env= and items=")
    if making:
        making["run_id"] = making.get("run_id") or new_run_id(short_env(str(making.get("env"))))
        jobs = make_jobs(**making)
        config = _config_of(jobs[0]) if jobs else None

    def go_on(waiting: int, tell: Callable[[int], None] | None = None) -> None:
        if stop.is_set():
            raise _Stopped
        if tell:
            tell(waiting)

    def noted() -> Iterator[TrajectoryJob]:
        for job in jobs or ():
            ids.append(job.trajectory_id)
            runs.setdefault(job.run_id)
            yield job

    ids: list[str] = []
    runs: dict[str, None] = {}
    with closing(Ledger.connect(url=url)) as ledger:
        report = sending.enqueue(
            noted(),
            ledger=ledger,
            config=config,
            on_batch=go_on,
            on_full=lambda waiting: go_on(waiting, on_full),
            publish=messages.push_messages,
        )
    run_id = next(iter(runs), making.get("run_id", ""))
    return Enqueued(run_id, tuple(ids), report.enqueued, report.already)


def _job(fields: dict[str, Any]) -> TrajectoryJob:
    try:
        return TrajectoryJob.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the job"
        raise ConfigurationError(f"enqueue: {place}: {first['msg']}") from error


def _identified(
    items: Iterable[Mapping[str, Any] | BaseModel], step: int | str | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(instance id, what tells its group from others, the item) of each item."""
    seen: dict[str, tuple[bytes, int]] = {}
    for number, given in enumerate(items):
        try:
            item = _plain(given)
            encoded = codec.encode_item(item)
        except (TypeError, ValueError) as error:
            raise InputError(f"enqueue: item {number} is no JSON object: {error}") from error
        named = item.get("instance_id")
        instance_id = str(named) if named else f"item-{hashlib.sha256(encoded).hexdigest()[:16]}"
        known, times = seen.get(instance_id, (encoded, 0))
        if known != encoded:
            raise InputError(
                f"enqueue: item {number}: instance_id {instance_id!r} stands for another item "
                "before it; ids must be unique"
            )
        seen[instance_id] = encoded, times + 1
        yield instance_id, group_key(instance_id, repetition=times + 1, step=step), item


def _plain(item: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    if isinstance(item, BaseModel):
        return item.model_dump(mode="json", by_alias=True, round_trip=True)
    return dict(item)


def _config_of(job: TrajectoryJob) -> dict[str, Any]:
    """What all calls for one run id must agree in.

    As with producers: all but lane, priority, endpoint, policy version, and which items.
    """
    return {
        "env": job.env,
        "agent": job.agent.kind,
        "model": job.agent.model,
        "sampling": job.agent.sampling,
        "agent_params": job.agent.params,
        "group_size": job.group_size,
        "group_policy": job.group_policy.model_dump(mode="json"),
        "limits": job.limits.model_dump(mode="json"),
        "profile": job.profile,
    }


def _check_run_id(run_id: str) -> None:
    try:
        TypeAdapter(Name).validate_python(run_id)
    except ValidationError as error:
        raise ConfigurationError(
            f"enqueue: run_id {run_id!r}: use letters, digits and . _ : - and begin with a letter "
            "or digit"
        ) from error
    if "/" in run_id or len(run_id) > RUN_ID_MAX:
        raise ConfigurationError(
            f"enqueue: run_id {run_id!r}: at most {RUN_ID_MAX} characters, none of them /"
        )
    try:
        check_run_id(run_id)
    except ValueError as error:
        raise ConfigurationError(f"enqueue: {error}") from error


def new_run_id(name: str) -> str:
    """A run id that nobody has: `name`, the time in UTC, and two random bytes."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{name}-{moment}-{secrets.token_hex(2)}"


def own_version() -> str:
    """The version that is installed; "" where none is."""
    try:
        return version("hermes-queue")
    except PackageNotFoundError:  # a bare checkout on sys.path
        return ""
