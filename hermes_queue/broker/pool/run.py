"""One job in the pool, and its reports to Celery.

`accept`, `report` and `run_sync` block on Redis and run on callback threads; the pool changes
everything else on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import apply_target
from celery.exceptions import Reject, SoftTimeLimitExceeded, Terminated

from hermes_queue.broker.pool.running import RunningTask
from hermes_queue.broker.pool.trace import CallbackResult, TaskCall, TaskOutcome, conclude

logger = logging.getLogger(__name__)


class Callbacks(NamedTuple):
    """Celery's callbacks for one job."""

    accept: Callable[[int, float], None] | None
    success: Callable[[Any], None] | None
    failure: Callable[[Any], None] | None
    timeout: Callable[[bool, float], None] | None


class Run:
    """A job in the pool. Celery keeps a weak reference to it and may `terminate` it."""

    def __init__(
        self,
        number: int,
        call: TaskCall,
        target: Callable[..., Any],
        callbacks: Callbacks,
        lane: Executor,
        terminate: Callable[[int], None],
    ) -> None:
        self.number = number
        """Celery's "pid" of this job."""
        self.call = call
        self.target = target
        """Celery's tracer, for tasks that are not coroutine functions."""
        self.callbacks = callbacks
        self.lane = lane
        """A single thread, so that Celery's callbacks for this job run in order."""
        self.running_task = RunningTask(call, getattr(callbacks.accept, "__self__", None), lane)
        self.soft_limit_s: float | None = None
        self.hard_limit_s: float | None = None
        self.started = 0.0
        """Monotonic seconds; 0.0 while the job waits for a slot."""
        self.timers: list[asyncio.TimerHandle] = []
        self.body: Coroutine[Any, Any, Any] | None = None
        self.task: asyncio.Task[Any] | None = None
        self.ended = False
        self.celery_knows = False
        """Celery ended the job itself (revoke, cold shutdown): no outcome is reported."""
        self._terminate = terminate

    def terminate(self, signal: int | None = None) -> None:
        """Called by `celery.worker.request.Request`."""
        self._terminate(self.number)

    def accept(self, started: float) -> None:
        """Report to Celery that the job runs since `started` (monotonic seconds)."""
        _guarded(self.callbacks.accept, self.number, started)

    def report(self, app: Any, outcome: TaskOutcome) -> None:
        """Report the job's outcome to Celery."""
        _guarded(self._report, app, outcome)

    def _report(self, app: Any, outcome: TaskOutcome) -> None:
        if self.celery_knows or self._is_left_to_the_queue(outcome):
            return
        task = app.tasks.get(self.call.name)
        if task is None:  # unknown task: only keep the message from being redelivered
            self.running_task.acknowledge_here()
            _guarded(self.callbacks.failure, exception_info(outcome.error or KeyError("task")))
            return
        hard = self.running_task.cancel_reason == "hard"
        if task.acks_on_timeout if hard else not isinstance(outcome.error, Reject):
            # On its main thread, where Celery would acknowledge, a lost connection ends the
            # worker.
            self.running_task.acknowledge_here()
        if hard:
            self.report_timeout(soft=False)
        elif isinstance(outcome.error, Terminated):
            self._succeed((1, exception_info(outcome.error), outcome.runtime_s))
        else:
            self._succeed(conclude(task, self.call, outcome))

    def _succeed(self, result: CallbackResult) -> None:
        """Call Celery's success callback, which takes failures too, despite its name."""
        if self.callbacks.success is not None:
            self.callbacks.success(result)

    def report_timeout(self, *, soft: bool) -> None:
        """Report to Celery that the soft or the hard limit was reached."""
        limit_s = self.soft_limit_s if soft else self.hard_limit_s
        _guarded(self.callbacks.timeout, soft, limit_s)

    def run_sync(self) -> None:
        """Run a task that is not a coroutine function, as Celery's thread pool does."""
        callbacks = self.callbacks
        try:
            apply_target(
                self.target, self.call, {}, callbacks.success, callbacks.accept, pid=self.number
            )
        except Exception as error:
            logger.exception(
                "Task %s[%s] broke its tracer.",
                self.call.name,
                self.call.task_id,
                extra={"action": "callback_failed"},
            )
            _guarded(callbacks.failure, exception_info(error))

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


def limit_s(given: object) -> float | None:
    """Return a time limit in seconds; None = no limit.

    Raises:
        TypeError, ValueError: it is not a positive, finite number.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"a time limit is a number of seconds, not {given!r:.100}")
    if not 0 < given < math.inf:
        raise ValueError(f"a time limit is positive and finite, not {given}")
    return float(given)


def exception_info(error: BaseException) -> Any:
    """Return `error` in the form that Celery's failure callbacks take."""
    try:
        raise error  # ExceptionInfo needs a traceback, and this one may never have been raised
    except BaseException:  # noqa: BLE001 - any error is described
        return ExceptionInfo()


def _guarded(function: Callable[..., Any] | None, *args: Any) -> None:
    """Call one of Celery's callbacks; a callback thread must survive its exceptions."""
    if function is None:
        return
    try:
        function(*args)
    except BaseException:  # on_success re-raises SystemExit
        logger.exception("A callback of Celery failed.", extra={"action": "callback_failed"})
