"""The Celery application that `celery -A hermes_queue worker` loads.

The broker carries only waiting jobs: a task acknowledges its message right after the ledger has
leased the trajectory, so `visibility_timeout` covers milliseconds and may be short. If Celery
redelivered lost jobs, a message would have to stay unacknowledged for an hour, and a Redis
outage would duplicate every running job or end the worker.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery import Celery, signals
from celery.concurrency import get_implementation
from celery.utils.nodenames import default_nodename
from click import Choice, Option
from kombu.entity import Exchange, Queue

from hermes_queue.broker.pool import (
    remote_control as remote_control,  # registers with Celery's panel
)
from hermes_queue.disk.locks import try_hold
from hermes_queue.errors import ConfigurationError
from hermes_queue.installation import check_installation, find_own_packages
from hermes_queue.keyspace import sentinel
from hermes_queue.keyspace.connection import redis_url
from hermes_queue.queues import RUN_TRAJECTORY, queue_name, retry_queue_name
from hermes_queue.settings import (
    PREFIX,
    PathSettings,
    RedisSettings,
    WorkerSettings,
    check_environment,
)
from hermes_queue.settings.redis import CELERY_URLS, SentinelAddress, broker_url
from hermes_queue.telemetry import logs

app = Celery("hermes_queue", include=["workers.trajectory", "workers.lifecycle"])


@signals.import_modules.connect  # type: ignore[untyped-decorator]
def _refuse_foreign_packages(**_: Any) -> None:
    """Run before `workers` is imported, which fails without a reason if `envs` is foreign."""
    _passes(check_installation)
    _passes(find_own_packages)  # Celery searches the working directory first


def _passes(check: Callable[[], object]) -> None:
    """End the process with the error on stderr if the check finds one."""
    try:
        check()
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(error.exit_code) from error


app.user_options["worker"].add(
    Option(
        ("--stages",),
        type=Choice(get_args(WorkerSettings.model_fields["stages"].annotation)),
        help="Stages that this worker runs (HERMES_QUEUE_WORKER_STAGES). agent: what its agents "
        "have done is graded by workers with `verify`, if any are there; these take nothing else.",
    )
)


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def _set_stages(options: Mapping[str, Any], **_: Any) -> None:
    """As a variable, which the workers that this one starts inherit."""
    if stages := options.get("stages"):
        os.environ[f"{PREFIX}WORKER_STAGES"] = stages


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def _name_apart(instance: Any, **_: Any) -> None:
    """Give a worker without `-n` a name that no other live worker of this host has."""
    if instance.hostname == default_nodename(""):
        instance.hostname = default_nodename("", _free_name(PathSettings().cache / "names"))


def _free_name(directory: Path) -> str:
    """`celery`, else `celery2` and so on, held by a lock until this process ends.

    It is `celery` where no lock can be had.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        names = chain(["celery"], (f"celery{number}" for number in count(2)))
        return next(name for name in names if try_hold(directory / name) is not None)
    except OSError:
        return "celery"


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _refuse_other_pools(sender: Any, **_: Any) -> None:
    """Any other pool takes jobs and runs none, since it awaits no coroutine."""
    if sender.app is app:
        _passes(lambda: _check_pool(sender.pool_cls))


def _check_pool(pool: object) -> None:
    from hermes_queue.broker.pool.task_pool import TaskPool

    found = get_implementation(pool)
    if not issubclass(found, TaskPool):
        raise ConfigurationError(
            f"the pool {found.__module__} runs no trajectories: "
            "start the worker without -P (--pool)"
        )


@signals.after_setup_logger.connect  # type: ignore[untyped-decorator]
@signals.after_setup_task_logger.connect  # type: ignore[untyped-decorator]
def _install_log_format(logger: logging.Logger, **_: Any) -> None:
    """Replace the format of Celery's handlers by that of `hermes_queue.telemetry.logs`."""
    logs.install(logger)


def _with_tls(url: str, options: dict[str, Any]) -> str:
    """`url` with redis-py's TLS options in its query, where kombu reads them."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query)) | {name: str(value) for name, value in options.items()}
    return parts._replace(query=urlencode(query)).geturl()


def connection_settings(redis: RedisSettings) -> dict[str, Any]:
    """Return Celery's settings of its connections to Redis.

    Raises:
        ConfigurationError: the URL is malformed.
    """
    url = redis_url(redis)
    options: dict[str, Any] = {
        "global_keyprefix": redis.prefix,
        # A message stays unacknowledged for milliseconds. If its worker dies within these, the
        # message is redelivered after this time; if it comes back too early, the ledger answers
        # `busy` and it is dropped.
        "visibility_timeout": 20,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        # With the default, a worker that dies while it looks for such messages would keep all
        # others from looking for five minutes.
        "unacked_mutex_expire": 10,
        "queue_order_strategy": "priority",
        "body_encoding": "utf-8",
        "socket_timeout": redis.timeout_s(url),
        "socket_connect_timeout": redis.connect_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 25,
    }
    broker, tls = broker_url(url), redis.tls_options(url)
    made: dict[str, Any] = {"broker_transport_options": options}
    if address := SentinelAddress.parse(url):
        options["master_name"] = address.master
        options["sentinel_kwargs"] = sentinel.sentinel_options(address, redis, url)
        if tls:
            made["broker_use_ssl"] = tls
    elif tls:
        broker = _with_tls(broker, tls)
    return made | {"broker_url": broker}


def _queues(lanes: str) -> list[Queue]:
    return [
        Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]
        for lane in filter(None, map(str.strip, lanes.split(",")))
        for name in (retry_queue_name(lane), queue_name(lane))
    ]


def _settings() -> dict[str, Any]:
    """Return Celery's settings; called when they are first needed."""
    _passes(check_environment)
    worker, connections = WorkerSettings(), connection_settings(RedisSettings())
    for name in CELERY_URLS:  # they name the same Redis, but not its TLS files
        if os.environ.get(name):
            os.environ[name] = connections["broker_url"]
    return dict(
        **connections,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_queues=_queues(worker.lanes),
        task_default_queue=queue_name(worker.lanes.split(",")[0].strip() or "train"),
        task_routes={RUN_TRAJECTORY: {}},
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        task_track_started=True,
        worker_send_task_events=True,
        worker_pool="hermes_queue.broker.pool:TaskPool",
        worker_concurrency=worker.concurrency,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_prefetch_count_reduction=False,  # early acks would keep it low for good
        worker_redirect_stdouts=False,
        timezone="UTC",
    )


app.add_defaults(_settings)
