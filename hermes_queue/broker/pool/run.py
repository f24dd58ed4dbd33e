"""One job in the pool, and its reports to Celery.

`accept`, `report` and `report_timeout` run on the callback thread, or on the loop's when nothing in
them waits for Redis; the pool changes everything else on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from celery.exceptions import SoftTimeLimitExceeded, Terminated
from pydantic import Field, TypeAdapter

from hermes_queue.broker.pool.callback_thread import CallbackThread
from hermes_queue.broker.pool.running import RunningTask, acknowledge_all
from hermes_queue.broker.pool.trace import TaskCall, TaskOutcome, conclude, exception_info

logger = logging.getLogger(__name__)

LIMIT_S: TypeAdapter[float | None] = TypeAdapter(
    Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None
)
"""Validates a time limit, which remote control may set to anything; None = no limit."""


class Callbacks(NamedTuple):
    """Celery's callbacks for one job."""

    accept: Callable[[int, float], None] | None
    success: Callable[[Any], None] | None
    """Takes failures too, despite its name."""
    timeout: Callable[[bool, float], None] | None


@dataclass(eq=False)
class Run:
    """A job in the pool. Celery keeps a weak reference to it and may `terminate` it."""

    number: int
    """Celery's "pid" of this job."""
    call: TaskCall
    callbacks: Callbacks
    thread: CallbackThread
    on_terminate: Callable[[int], None]
    soft_limit_s: float | None
    hard_limit_s: float | None
    started: float = 0.0
    """Monotonic seconds; 0.0 while the job waits for a slot."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    body: Coroutine[Any, Any, Any] | None = None
    task: asyncio.Task[Any] | None = None
    ended: bool = False
    celery_knows: bool = False
    """Celery ended the job itself (revoke, cold shutdown): no outcome is reported."""

    def __post_init__(self) -> None:
        request = getattr(self.callbacks.accept, "__self__", None)
        self.running_task = RunningTask(self.call.task_id, request, self.thread)

    def terminate(self, signal: int | None = None) -> None:
        """Called by `celery.worker.request.Request`."""
        self.on_terminate(self.number)

    def accept(self, started: float) -> None:
        """Report to Celery that the job runs since `started` (monotonic seconds)."""
        _guarded(self.callbacks.accept, self.number, started)

    def reports_at_once(self, outcome: TaskOutcome) -> bool:
        """Whether `report` has nothing to wait for: a success whose message is acknowledged."""
        task = self.running_task
        return outcome.error is None and task.acknowledged and task.cancel_reason is None

    def report(self, app: Any, outcome: TaskOutcome) -> None:
        """Report the job's outcome to Celery."""
        _guarded(self._report, app, outcome)

    def _report(self, app: Any, outcome: TaskOutcome) -> None:
        if self.celery_knows or self._is_left_to_the_queue(outcome):
            return
        # Here and not on Celery's main thread, where a lost connection would end the worker.
        acknowledge_all([self.running_task])
        if self.running_task.cancel_reason == "hard":
            self.report_timeout(soft=False)
        elif isinstance(outcome.error, Terminated):
            _guarded(self.callbacks.success, (1, exception_info(outcome.error), outcome.runtime_s))
        else:
            task = app.tasks[self.call.name]
            _guarded(self.callbacks.success, conclude(task, self.call, outcome))

    def report_timeout(self, *, soft: bool) -> None:
        """Report to Celery that the soft or the hard limit was reached."""
        limit_s = self.soft_limit_s if soft else self.hard_limit_s
        _guarded(self.callbacks.timeout, soft, limit_s)

    def cancellation(self) -> BaseException:
        """Return the error to report for a body that ended as cancelled."""
        reason = self.running_task.cancel_reason
        if reason is None:
            return RuntimeError("the task cancelled itself")
        error: BaseException = Terminated(reason)
        if reason == "soft":
            error = SoftTimeLimitExceeded(self.soft_limit_s)
        return error

    def _is_left_to_the_queue(self, outcome: TaskOutcome) -> bool:
        """Whether the shutdown ended the job before its message was acknowledged."""
        return (
            self.running_task.cancel_reason == "shutdown"
            and isinstance(outcome.error, Terminated)
            and not self.running_task.acknowledged
        )


def _guarded(function: Callable[..., Any] | None, *args: Any) -> None:
    """Call one of Celery's callbacks; its thread must survive its exceptions."""
    if function is None:
        return
    try:
        function(*args)
    except BaseException:  # on_success re-raises SystemExit
        logger.exception("A callback of Celery failed.", extra={"action": "callback_failed"})
