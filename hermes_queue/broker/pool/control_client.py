"""Sends remote control commands to workers, for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.errors import RedisUnavailable


def ask(
    command: str,
    names: Sequence[str] | None,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
) -> dict[str, Any]:
    """Have workers run a command; returns their answers by name.

    Args:
        command: one of Celery's or of `hermes_queue.broker.pool.remote_control`.
        names: workers, as Celery names them; None = all.
        arguments: arguments of the command.
        timeout_s: how long to wait for answers; with `names`, only until all have answered.

    Raises:
        RedisUnavailable: the command may have been sent.
    """
    from kombu.exceptions import OperationalError
    from redis import RedisError

    from hermes_queue.broker.app import app

    try:
        answers = app.control.broadcast(
            command,
            arguments=dict(arguments or {}),
            destination=None if names is None else list(names),
            limit=None if names is None else len(names),
            reply=True,
            timeout=timeout_s,
        )
    except (OperationalError, RedisError, OSError) as error:
        raise RedisUnavailable(f"the command cannot be sent to the workers: {error}") from error
    return {name: answer for each in answers or () for name, answer in each.items()}
