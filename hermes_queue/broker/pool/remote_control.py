"""Our additions to Celery's `inspect` and `control` commands, and how the command line sends them.

    celery -A hermes_queue inspect slots
    celery -A hermes_queue inspect transcript ID    # or: transcript ID NUMBER
    celery -A hermes_queue control pause            # or: pause LANE
    celery -A hermes_queue control resume
    celery -A hermes_queue control drain -d celery@host
    celery -A hermes_queue control set_limits 32    # or: set_limits CONCURRENCY SLOTS

Importing this module registers them with Celery's control panel, in workers and in the command
line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

from celery import Celery
from celery.worker.control import Panel, control_command, inspect_command, nok, ok
from kombu.exceptions import OperationalError
from redis import RedisError

from hermes_queue.broker.pool.intake import INTAKE
from hermes_queue.broker.pool.task_pool import on_resize
from hermes_queue.errors import RedisUnavailable
from hermes_queue.keyspace.connection import explanation, redis_url
from hermes_queue.settings import RedisSettings
from hermes_queue.settings.redis import broker_url

logger = logging.getLogger(__name__)

MOST_SLOTS = 10_000
MOST_LISTED = 100
"""Number of trajectories that `inspect slots` lists per worker."""

TOO_OFTEN = "asked too often"
"""Error of `inspect transcript` after more questions than a worker answers in a second."""

describe: list[Callable[[], Mapping[str, Any]]] = []
"""Callables whose facts `inspect slots` returns; called on Celery's main thread."""

read_transcript: list[Callable[[str, int], Mapping[str, Any]]] = []
"""Called with a trajectory and the number of its first message that is asked for, on Celery's main
thread; returns what `inspect transcript` answers."""

on_revoke: list[Callable[[list[str], bool], None]] = []
"""Called with the ids of tasks that Celery revokes, and whether to end running ones; on Celery's
main thread."""

ControlReply = dict[str, Any]


def ask(
    command: str,
    names: Sequence[str],
    arguments: Mapping[str, Any],
    *,
    timeout_s: float,
    url: str | None = None,
) -> dict[str, Any]:
    """Have the workers `names` run a command, ours or Celery's; returns their answers by name.

    Waits until all have answered, at most `timeout_s`. `url` is another Redis URL than that of
    the settings, for a process whose own user may not ask workers.

    Raises:
        RedisUnavailable: the command may have been sent.
    """
    try:
        answers = _application(url).control.broadcast(
            command,
            arguments=dict(arguments),
            destination=list(names),
            limit=len(names),
            reply=True,
            timeout=timeout_s,
        )
    except (OperationalError, RedisError, OSError) as error:
        why = explanation(redis_url(RedisSettings(), url), error)
        raise RedisUnavailable(f"the command cannot be sent to the workers: {why}") from error
    return {name: answer for each in answers or () for name, answer in each.items()}


@lru_cache(maxsize=2)
def _application(url: str | None) -> Celery:
    """Ours, or one that sends to another URL: a mailbox sends by the pool of its application."""
    from hermes_queue.broker.app import app  # which imports this module

    if url is None:
        return app
    other = Celery("hermes_queue", broker=broker_url(url), set_as_current=False)
    other.conf.update({name: app.conf[name] for name in ("broker_transport_options", "timezone")})
    return other


@inspect_command()  # type: ignore[untyped-decorator]
def slots(state: Any, **_: Any) -> ControlReply:
    """Slots of each worker, whether it takes jobs, and its oldest trajectories."""
    found: ControlReply = {"concurrency": state.consumer.pool.limit, "intake": INTAKE.state}
    found["paused_lanes"] = sorted(INTAKE.paused_lanes)
    for facts in describe:
        found |= facts()
    return found


@inspect_command(  # type: ignore[untyped-decorator]
    args=[("trajectory_id", str), ("start", int)], signature="ID [NUMBER]"
)
def transcript(state: Any, trajectory_id: str = "", start: int = 0, **_: Any) -> ControlReply:
    """Messages of a running trajectory, from a number on, without secrets."""
    for read in read_transcript:
        return dict(read(str(trajectory_id), max(0, int(start))))
    return dict(nok("this worker has not opened yet"))


@control_command(variadic="lanes", signature="[LANE ...]")  # type: ignore[untyped-decorator]
def pause(state: Any, lanes: list[str] | None = None, **_: Any) -> ControlReply:
    """Take no more jobs (of the lanes); running trajectories continue."""
    return _answer(lambda: INTAKE.pause(state.consumer, tuple(lanes or ())), "paused")


@control_command(variadic="lanes", signature="[LANE ...]")  # type: ignore[untyped-decorator]
def resume(state: Any, lanes: list[str] | None = None, **_: Any) -> ControlReply:
    """Take jobs again (of the lanes)."""
    return _answer(lambda: INTAKE.resume(state.consumer, tuple(lanes or ())), "takes jobs again")


@control_command()  # type: ignore[untyped-decorator]
def drain(state: Any, **_: Any) -> ControlReply:
    """Take no more jobs and end when the last trajectory has ended."""
    return _answer(lambda: INTAKE.drain(state.consumer), "draining")


@control_command(  # type: ignore[untyped-decorator]
    args=[("concurrency", int), ("slots", int)], signature="CONCURRENCY [SLOTS]"
)
def set_limits(
    state: Any, concurrency: int | None = None, slots: int | None = None, **_: Any
) -> ControlReply:
    """Set the number of trajectories, and of slots (default: the same), from now on."""

    def change() -> None:  # growing resizes the backend too; a different SLOTS is set after it
        new_slots = slots if slots is not None else concurrency
        if concurrency is None or new_slots is None:
            raise ValueError("a number is missing: set_limits CONCURRENCY [SLOTS]")
        if not 1 <= concurrency <= MOST_SLOTS or not 1 <= new_slots <= MOST_SLOTS:
            raise ValueError(f"concurrency and slots must be from 1 to {MOST_SLOTS}")
        pool = state.consumer.pool
        if concurrency > pool.limit:
            pool.grow(concurrency - pool.limit)
        elif concurrency < pool.limit:
            pool.shrink(pool.limit - concurrency)
        for listener in on_resize:
            listener(new_slots)

    return _answer(change, "limits set")


def _answer(change: Callable[[], None], done: str) -> ControlReply:
    try:
        change()
    except ValueError as error:
        return dict(nok(str(error)))
    logger.warning("%s, by remote control", done, extra={"action": "remote_control"})
    return dict(ok(done))


def _report_revocations(name: str, terminate: bool) -> None:
    """Have Celery's own command call `on_revoke` after it has done its work."""
    command = Panel.data[name]

    @wraps(command)
    def reporting(state: Any, **arguments: Any) -> Any:
        answer = command(state, **arguments)
        ids = arguments.get("task_id") or []
        ends = terminate or bool(arguments.get("terminate"))
        for each in on_revoke:
            each([ids] if isinstance(ids, str) else list(ids), ends)
        return answer

    Panel.data[name] = reporting


def _refuse(name: str, why: str) -> None:
    """Have a command of Celery's that has no effect here say so, where it would report success."""

    def refusing(state: Any, **_: Any) -> ControlReply:
        return dict(nok(f"{name} has no effect here: {why}"))

    Panel.data[name] = refusing


def _take_over_what_waits() -> None:
    """Have `rate_limit` free what the former limit held back.

    Celery makes a new bucket and leaves messages in the old one until that would have let them go.
    """
    command = Panel.data["rate_limit"]

    @wraps(command)
    def changing(state: Any, task_name: str, rate_limit: Any, **arguments: Any) -> Any:
        consumer = state.consumer
        before = consumer.task_buckets.get(task_name)
        answer = command(state, task_name, rate_limit, **arguments)
        after = consumer.task_buckets.get(task_name)
        while before and before is not after and before.contents:
            request, tokens = before.pop()
            if after:
                consumer._limit_task(request, after, tokens)
            else:
                consumer._limit_move_to_pool(request)
        return answer

    Panel.data["rate_limit"] = changing


_take_over_what_waits()
_refuse("time_limit", "times are set when jobs are enqueued, by --agent-timeout and others")
_refuse("revoke_by_stamped_headers", "jobs have no stamps; use `revoke ID` or `run cancel`")
_report_revocations("revoke", terminate=False)
_report_revocations("terminate", terminate=True)
