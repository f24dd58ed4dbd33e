"""Events of tasks, published in batches.

Celery publishes buffered events at each turn of its loop, and every sender wakes that loop: in the
end one message per event. Here a timer publishes them. Listeners (Flower, `celery events`) know
batches as Celery's own `task-multi` messages.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

from hermes_queue.broker.pool.callback_thread import CallbackThread

logger = logging.getLogger(__name__)

INTERVAL_S = 0.05
"""Shortest time for which events are collected."""
INTERVAL_MAX_S = 5.0
SHARE_OF_TIME = 0.1
"""Part of the callback thread's time that publishing may take, up to the longest interval: it could
take all of it while Redis does not answer."""


class EventBatches:
    """Publishes what a consumer's event dispatcher has buffered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: CallbackThread) -> None:
        self._loop = loop
        self._thread = thread
        self._dispatcher: Any = None
        self._due = False
        """Whether the buffer will be published without further notice."""
        self._interval_s = INTERVAL_S

    def collect(self, dispatcher: Any) -> None:
        """Publish the task events of `dispatcher` from now on; sending one then never blocks.

        It is None in a worker that sends no events of any kind.
        """
        self._dispatcher = dispatcher
        if dispatcher is None:
            return
        dispatcher.buffer_group = {"task"}
        dispatcher.buffer_limit = sys.maxsize  # beyond it, the sender itself would publish
        dispatcher.on_send_buffered = self._publish_soon

    def publish(self) -> None:
        """Publish what is buffered; blocks. Of a lost connection, Celery keeps it for the next."""
        began = time.monotonic()
        try:
            if self._dispatcher is not None:
                self._dispatcher.flush()
        except Exception as error:  # noqa: BLE001 - events are only for display
            logger.debug("events were not sent: %s", error)
        spent_s = time.monotonic() - began
        self._interval_s = min(max(INTERVAL_S, spent_s / SHARE_OF_TIME), INTERVAL_MAX_S)

    def _publish_soon(self) -> None:
        """Called by the dispatcher on the thread that sends an event."""
        if self._due:
            return
        self._due = True
        try:
            self._loop.call_soon_threadsafe(self._arm)
        except RuntimeError:  # the loop has ended, and the pool publishes the rest
            self._due = False

    def _arm(self) -> None:
        self._loop.call_later(self._interval_s, self._thread.submit, self._publish_due)

    def _publish_due(self) -> None:
        self._due = False  # before the buffer is read: what comes later asks again
        self.publish()
