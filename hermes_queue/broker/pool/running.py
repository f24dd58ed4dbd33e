"""A running task as its body sees it."""

from __future__ import annotations

import asyncio
import logging
import traceback
import types
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, Literal, Protocol

from celery.exceptions import SoftTimeLimitExceeded

logger = logging.getLogger(__name__)

CancelReason = Literal["soft", "hard", "terminate", "shutdown", "lease_lost", "cancelled", "stuck"]
"""soft, hard: time limits. terminate: `revoke(terminate=True)`. shutdown: the worker ends.
lease_lost: another worker may run the job already. cancelled: any other caller."""

STAGE_EVENT = "task-STARTED"
"""Event that reports the stage of a running task; see `RunningTask.report_stage`."""

_current: ContextVar[RunningTask] = ContextVar("hermes_queue_running_task")


class SoftLimitCancellation(SoftTimeLimitExceeded, asyncio.CancelledError):  # type: ignore[misc]
    """The cancellation of a body by its soft limit.

    An instance is Celery's exception and a cancellation at once, so task groups, timeouts and
    gather() end their children before they let it pass.
    """


class Acknowledges(Protocol):
    """What acknowledges the messages of tasks beside the loop."""

    def acknowledge(self, task: RunningTask) -> Awaitable[None]:
        """Acknowledge the message of `task`, or note that this failed."""


class RunningTask:
    """The task that a body runs in. Get it from `current_task()`."""

    def __init__(self, task_id: str, request: Any, callbacks: Acknowledges) -> None:
        # `request` is Celery's `Request`, found through the accept callback bound to it (None
        # outside of a worker). `worker.state.requests[id]` is emptied by a reconnect, and
        # may be that of a second delivery of the same id.
        self.task_id = task_id
        self.cancel_reason: CancelReason | None = None
        """Set before the cancellation reaches the body."""
        self._request = request
        self._callbacks = callbacks
        self._acknowledged: bool | None = None

    @property
    def acknowledged(self) -> bool:
        """Whether Celery considers the broker message settled."""
        return self._request is not None and bool(self._request.acknowledged)

    def adopt_message(self, channel: Any) -> None:
        """Use `channel` in place of the one that delivered the message. For the pool only."""
        # The callback thread may be acknowledging on the old channel. That fails, and the message
        # comes back after the visibility timeout; the ledger then answers that the job has run.
        if self._request is not None and not self._request.acknowledged:
            self._request.message.channel = channel

    def report_stage(self, stage: str) -> None:
        """Report the task's stage to listeners of events, mainly to Flower; does not block."""
        if self._request is None:
            return
        # Listeners turn an event type that Celery does not know into a state, the name in upper
        # case: `task-agent` would become AGENT, a state in which Flower has no button to terminate
        # the task. `task-STARTED` leaves the state STARTED and its start time unchanged. The event
        # repeats the name, because a late `task-sent` of the producer replaces the displayed one.
        fields = {"stage": stage, "result": f"stage: {stage}", "name": self._request.name}
        try:
            self._request.send_event(STAGE_EVENT, **fields)
        except Exception as error:  # noqa: BLE001 - events are only for display
            logger.debug("event %s of %s was not sent: %s", stage, self.task_id, error)

    async def acknowledge(self) -> bool:
        """Acknowledge the broker message now instead of after the body.

        Safe to call twice and while Redis is away; waits for Redis on the callback thread. Returns
        False if the acknowledgement did not reach the broker (logged): the message is redelivered
        once after the visibility timeout, and this worker does not touch it again.
        """
        if self._request is not None and self._acknowledged is None:
            await self._callbacks.acknowledge(self)
        return bool(self._acknowledged)

    def _acknowledgement_ended(self, error: Exception | None) -> None:
        self._acknowledged = error is None
        if error is not None:
            logger.warning(
                "Job %s: its message could not be acknowledged (%r) and will be delivered again.",
                self.task_id,
                error,
                extra={"action": "early_ack_failed", "task_id": self.task_id},
            )
        # Also after a failure: a second attempt by Celery on a dead channel would end the worker.
        self._request.acknowledged = True


def acknowledge_all(tasks: Sequence[RunningTask]) -> None:
    """Acknowledge the messages of `tasks`, in one round trip per channel; blocks.

    For the pool on its callback thread: on two threads at once, a message might be acknowledged
    twice. A failure is logged for each task.
    """
    batches: dict[Any, list[RunningTask]] = {}
    for task in dict.fromkeys(tasks):
        request = task._request
        if task._acknowledged is not None:
            continue
        if request is None or request.acknowledged:
            task._acknowledged = request is not None
        else:
            batches.setdefault(request.message.channel, []).append(task)
    for channel, batch in batches.items():
        failure = None
        try:
            # Request.acknowledge() would only schedule this on Celery's thread and would not
            # report its success.
            channel.acknowledge([task._request.message for task in batch])
        except Exception as error:  # noqa: BLE001 - stale channels may raise anything
            failure = error
        for task in batch:
            task._acknowledgement_ended(failure)


def current_task() -> RunningTask:
    """Return the job whose body is running; RuntimeError outside of it and its asyncio tasks."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("current_task() was called outside of a coroutine task") from None


async def run_body(
    body: Coroutine[Any, Any, Any], task: RunningTask, soft_limit_s: float | None
) -> Any:
    """Await `body` as the body of `task`, in the context of the calling asyncio task.

    Raises:
        SoftTimeLimitExceeded: the body did not catch it, or ended in response to it.
        RuntimeError: in place of SystemExit and KeyboardInterrupt, which would end the loop.
    """
    _current.set(task)
    try:
        if soft_limit_s is None:
            return await body
        return await _deliver_soft_limit(body, task, soft_limit_s)
    except SoftLimitCancellation as error:
        raise SoftTimeLimitExceeded(*error.args) from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the task raised {error!r}") from error


@types.coroutine
def _deliver_soft_limit(
    body: Coroutine[Any, Any, Any], task: RunningTask, soft_limit_s: float
) -> Generator[Any, Any, Any]:
    """Drive `body`; a cancellation by the soft limit reaches it as Celery's exception."""
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
            if task.cancel_reason == "soft" and not delivered:
                delivered = True
                error = SoftLimitCancellation(soft_limit_s)
                # The body may catch it and continue: its task is then no longer being cancelled.
                if ours := asyncio.current_task():
                    ours.uncancel()
        except BaseException as thrown:  # noqa: BLE001 - passed to the body unchanged
            error = thrown


def suspended_stack(body: Any) -> str:
    """Return the stack of a suspended coroutine, outermost frame first; "" if it is unknown."""
    lines: list[str] = []
    while body is not None:
        frame: FrameType | None = getattr(body, "cr_frame", None) or getattr(body, "gi_frame", None)
        if frame is not None:
            summary = traceback.StackSummary.extract([(frame, frame.f_lineno)])
            lines += summary.format()
        body = getattr(body, "cr_await", None) or getattr(body, "gi_yieldfrom", None)
    return "".join(lines)
