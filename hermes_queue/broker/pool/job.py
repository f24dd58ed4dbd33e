"""A running task as its own body sees it."""

from __future__ import annotations

import asyncio
import logging
import traceback
import types
from collections.abc import Coroutine, Generator, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar
from types import FrameType
from typing import Any, Literal

from celery.exceptions import SoftTimeLimitExceeded

from hermes_queue.broker.pool.trace import TaskCall

logger = logging.getLogger(__name__)

CancelReason = Literal["soft", "hard", "terminate", "shutdown", "lease_lost", "cancelled"]
"""soft, hard: time limits. terminate: `revoke(terminate=True)`. shutdown: the worker ends.
lease_lost: the job may run elsewhere already. cancelled: somebody else asked for it."""

STAGE_EVENT = "task-STARTED"
"""An event of a running task that tells its `stage`; see `Job.tell`."""

_current: ContextVar[Job] = ContextVar("hermes_queue_job")


class SoftLimitCancellation(SoftTimeLimitExceeded, asyncio.CancelledError):  # type: ignore[misc]
    """What a body meets at its soft limit.

    Celery's exception, which task groups, timeouts and gather() nevertheless treat as the
    cancellation it is: they end their children before they let it pass.
    """


class Job:
    """What a body may know and do about the task it runs in. Get it from `current_job()`."""

    def __init__(self, call: TaskCall, request: Any, callbacks: Executor) -> None:
        # `request` is Celery's `Request`, found through the accept callback bound to it (None
        # outside of a worker). `worker.state.requests[id]` is emptied by a reconnect, and
        # may be that of a second delivery of the same id.
        self.task_id = call.task_id
        self.name = call.name
        self.headers: Mapping[str, Any] = types.MappingProxyType(call.request)
        """All headers of the message, Celery's and the sender's."""
        self.retries = int(call.request.get("retries") or 0)
        self.delivery_info: Mapping[str, Any] = call.request.get("delivery_info") or {}
        """exchange, routing_key (the queue), priority, redelivered."""
        self.hostname: str = call.request.get("hostname") or ""
        """Name of the worker node."""
        self.cancel_reason: CancelReason | None = None
        """Set before the cancellation reaches the body."""
        self._request = request
        self._callbacks = callbacks
        self._acknowledged: bool | None = None

    def __repr__(self) -> str:
        return f"<Job {self.name}[{self.task_id}]>"

    @property
    def acknowledged(self) -> bool:
        """Whether Celery considers the broker message settled."""
        return self._request is not None and bool(self._request.acknowledged)

    def adopt_message(self, channel: Any) -> None:
        """Use `channel` in place of the one that brought the message. For the pool."""
        if self._request is not None and not self._request.acknowledged:
            self._request.message.channel = channel

    def tell(self, stage: str) -> None:
        """Tell whoever listens to events, Flower above all, which stage the task has come to.

        Does nothing outside of a worker, or when events are off.
        """
        if self._request is not None:
            self._callbacks.submit(self._tell, stage)

    def _tell(self, stage: str) -> None:
        # Of a type that Celery does not know, listeners make a state: the name in upper case.
        # `task-agent` would be a state AGENT, in which Flower has no button to terminate the task;
        # `task-STARTED` leaves it STARTED, and its time of start untouched.
        # The name is told again because a late `task-sent` of the producer replaces the shown one.
        told = {"stage": stage, "result": f"stage: {stage}", "name": self._request.name}
        try:
            self._request.send_event(STAGE_EVENT, **told)
        except Exception as error:  # noqa: BLE001 - nobody's work depends on what is only shown
            logger.debug("event %s of %s was not sent: %s", stage, self.task_id, error)

    async def acknowledge(self) -> bool:
        """Acknowledge the broker message now instead of when the body has ended.

        Safe to call twice and while Redis is away; waits for Redis on a callback thread.

        Returns:
            False when the broker could not be told (logged). The message is then delivered
            once more after the visibility timeout; this worker does not touch it again.
        """
        if self._acknowledged is None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._callbacks, self.acknowledge_here)
        return bool(self._acknowledged)

    def acknowledge_here(self) -> None:
        """The same for the callback thread, which serialises all calls. For the pool."""
        if self._acknowledged is not None:
            return
        request = self._request
        if request is None or request.acknowledged:
            self._acknowledged = request is not None
            return
        try:
            # Request.acknowledge() would only schedule this on Celery's own thread
            # and tell nobody how it went.
            request.message.ack()
            self._acknowledged = True
        except Exception as error:  # noqa: BLE001 - stale channels raise whatever they like
            self._acknowledged = False
            logger.warning(
                "Job %s: its message could not be acknowledged (%r) and will be delivered again.",
                self.task_id,
                error,
                extra={"action": "early_ack_failed", "task_id": self.task_id},
            )
        # Also after a failure: Celery's own try on a dead channel would end the worker.
        request.acknowledged = True


def current_job() -> Job:
    """The job whose body is running.

    Raises:
        RuntimeError: not called from a coroutine task, or from a task it has created.
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("current_job() was called outside of a coroutine task") from None


async def run_body(body: Coroutine[Any, Any, Any], job: Job, soft_limit_s: float | None) -> Any:
    """Await `body` as the job's own, in the context of the calling asyncio task.

    Raises:
        SoftTimeLimitExceeded: the body let it pass, or answered it with its own end.
        RuntimeError: in place of SystemExit and KeyboardInterrupt, which would end the loop.
    """
    _current.set(job)
    try:
        return await _deliver_soft_limit(body, job, soft_limit_s)
    except SoftLimitCancellation as error:
        raise SoftTimeLimitExceeded(*error.args) from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the task raised {error!r}") from error


@types.coroutine
def _deliver_soft_limit(
    body: Coroutine[Any, Any, Any], job: Job, soft_limit_s: float | None
) -> Generator[Any, Any, Any]:
    """Drive `body`; the cancellation by the soft limit reaches it as Celery's exception."""
    delivered = False
    error: BaseException | None = None
    while True:
        try:
            awaited = body.send(None) if error is None else body.throw(error)
        except StopIteration as stop:
            return stop.value
        try:
            yield awaited
            error = None
        except asyncio.CancelledError as cancelled:
            error = cancelled
            if job.cancel_reason == "soft" and not delivered:
                delivered = True
                error = SoftLimitCancellation(soft_limit_s)
                # The body may catch it and go on: its task is not being cancelled any more.
                if task := asyncio.current_task():
                    task.uncancel()
        except BaseException as thrown:  # noqa: BLE001 - handed on to the body as it is
            error = thrown


def suspended_stack(body: Any) -> str:
    """Where a suspended coroutine waits, outermost frame first; "" when that is unknown."""
    lines: list[str] = []
    while body is not None:
        frame: FrameType | None = getattr(body, "cr_frame", None) or getattr(body, "gi_frame", None)
        if frame is not None:
            summary = traceback.StackSummary.extract([(frame, frame.f_lineno)])
            lines += summary.format()
        body = getattr(body, "cr_await", None) or getattr(body, "gi_yieldfrom", None)
    return "".join(lines)
