"""What keeps a worker alive when Redis goes away under an unacknowledged message, or sends none.

Celery 5.7 on Redis closes a lost connection by putting unacknowledged messages back over
that very connection; the error that follows ends the worker, or, when the server is back
already, every running job is delivered a second time.
"""

from __future__ import annotations

from typing import Any

import redis
from celery import bootsteps

from hermes_queue.broker.pool import shutdown


class SteadyChannel(bootsteps.StartStopStep):  # type: ignore[misc]
    """Started on every connection of the consumer: `c.pool` is a `TaskPool`."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:
        super().__init__(c, **options)
        # A Redis that is full, loading or read-only answers with an error. For the consumer
        # that is a lost connection, to be tried again, not a reason to end the worker.
        c.connection_errors = (*c.connection_errors, redis.ResponseError)

    def start(self, c: Any) -> None:
        """Messages of the last connection are acknowledged on this one from now on.

        Redis knows them by their delivery tags, which do not depend on connections. What
        stays unacknowledged comes back after the visibility timeout.
        """
        channel = c.task_consumer.channel
        channel.do_restore = False
        c.pool.adopt_messages(channel)
        # New ones are looked at first.
        c.pool.screen.install(c.connection, channel, c.connection_errors)

    def stop(self, c: Any) -> None:
        """At the end of the worker unacknowledged messages go back at once."""
        if c.task_consumer and shutdown.is_ordered():
            c.task_consumer.channel.do_restore = True
