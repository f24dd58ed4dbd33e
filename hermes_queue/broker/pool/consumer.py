"""Keeps a worker alive when Redis fails while messages are unacknowledged, or answers with errors.

Celery 5.7 closes a lost Redis connection by restoring unacknowledged messages over that very
connection. The resulting error ends the worker; or, if the server is back already, every running
job is delivered a second time.
"""

from __future__ import annotations

from typing import Any

import redis
from celery import bootsteps

from hermes_queue.broker.pool.intake import INTAKE, shutdown_is_ordered
from hermes_queue.broker.pool.transport import attach


class SteadyChannel(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the consumer, run for each of its connections; `c.pool` is a `TaskPool`."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:
        super().__init__(c, **options)
        # A Redis that is full, loading or read-only answers with an error. The consumer must
        # treat that as a lost connection and retry; otherwise the error would end the worker.
        c.connection_errors = (*c.connection_errors, redis.ResponseError)

    def start(self, c: Any) -> None:
        """Acknowledge messages of the previous connection on this one from now on.

        Redis knows them by their delivery tags, which do not depend on connections. A message
        that stays unacknowledged is redelivered after the visibility timeout.
        """
        channel = c.task_consumer.channel
        channel.do_restore = False
        c.pool.adopt_messages(channel)
        # From here on, new messages are validated before Celery reads them.
        attach(channel, c.pool.screen, c.pool.room)
        c.pool.events.collect(c.event_dispatcher)
        INTAKE.attach(c)

    def stop(self, c: Any) -> None:
        """Restore unacknowledged messages at once when the worker ends."""
        if not shutdown_is_ordered():
            # What fails now is kept by Celery for the next connection; its buffer is not.
            c.pool.events.publish()
        elif c.task_consumer:
            c.task_consumer.channel.do_restore = True
