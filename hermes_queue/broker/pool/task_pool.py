"""Slots, limits, cancellation and shutdown of the pool, and its place in Celery's worker.

A worker stays alive when Redis fails while messages are unacknowledged, or answers with errors.
Celery 5.7 closes a lost Redis connection by restoring unacknowledged messages over that very
connection. The resulting error ends the worker; or, if the server is back already, every running
job is delivered a second time.

Events of tasks are published in batches. Celery publishes buffered events at each turn of its loop,
and every sender wakes that loop: in the end one message per event. Here a timer publishes them.
Listeners (Flower, `celery events`) know batches as Celery's own `task-multi` messages.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, TypeVar

import redis
from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.exceptions import Terminated
from celery.worker import state as worker_state

from hermes_queue.broker.pool.callback_thread import CallbackThread
from hermes_queue.broker.pool.intake import (
    INTAKE,
    shutdown_is_cold,
    shutdown_is_ordered,
    with_prefetch,
    within_slots,
)
from hermes_queue.broker.pool.loop_thread import LoopThread
from hermes_queue.broker.pool.run import LIMIT_S, Callbacks, Run
from hermes_queue.broker.pool.running import CancelReason, RunningTask, run_body, suspended_stack
from hermes_queue.broker.pool.screening import Screen
from hermes_queue.broker.pool.trace import TaskCall, TaskOutcome, arguments
from hermes_queue.broker.pool.transport import attach, use_batches
from hermes_queue.settings import WorkerSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

DRAIN_POLL_S = 0.02
STACKS_SHOWN = 8
"""Jobs given up at a time that are logged with their stacks; of further ones only the number."""
REFILL_DELAY_S = 0.01
"""Time from the end of a job until new ones are taken, for all slots that become free in it."""

on_resize: list[Callable[[int], None]] = []
"""Called with the new number of slots, on the thread that resized the pool."""

EVENTS_INTERVAL_S = 0.05
"""Shortest time for which events are collected."""
_EVENTS_INTERVAL_MAX_S = 5.0
EVENTS_SHARE_OF_TIME = 0.1
"""Part of the callback thread's time that publishing may take, up to the longest interval: it could
take all of it while Redis does not answer."""


class TaskPool(BasePool):  # type: ignore[misc]
    """Runs coroutine tasks on one loop, at most `limit` at a time.

    A cancelled body is cancelled again after `cancel_grace_s`. After the same time again the
    pool gives it up: it logs the stack and frees the slot.
    """

    signal_safe = False
    body_can_be_buffer = True
    cancel_grace_s: ClassVar[float] = 10.0
    limit: int
    ahead: int
    """As many of these have no agent yet, see `StageSettings.prefetch`."""
    _instance: ClassVar[TaskPool | None] = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        agents = within_slots(self.limit)
        self.limit, self.screen = with_prefetch(agents), Screen()
        self.ahead = self.limit - agents
        if self.app is not None:  # Celery builds its consumer after its pool
            self.app.steps["consumer"].add(_SteadyChannel)
            use_batches(self.app)

    # --- what worker code uses ----------------------------------------------------------

    @classmethod
    def instance(cls) -> TaskPool:
        """The pool of this process; RuntimeError if the worker has not started it."""
        if TaskPool._instance is None:
            raise RuntimeError("no hermes_queue.broker.pool:TaskPool runs in this process")
        return TaskPool._instance

    @property
    def busy(self) -> bool:
        """Whether any job runs or waits in this pool."""
        return bool(self._runs)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs all bodies."""
        return self._loop_thread.loop

    @property
    def loop_silent_s(self) -> float:
        """Seconds since the loop last answered; see `LoopWatchdog.silent_s`."""
        return self._loop_thread.watchdog.silent_s

    def loop_stack(self) -> str:
        """Current stack of the loop's thread."""
        return self._loop_thread.watchdog.stack()

    def on_loop_now(self) -> RunningTask | None:
        """Return the job whose code the loop runs at this moment, if known. Thread-safe."""
        task = asyncio.current_task(self.loop)
        runs = tuple(self._runs.values()) if task else ()
        return next((run.running_task for run in runs if run.task is task), None)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` on the loop. Call it from any other thread."""
        return self._loop_thread.submit(coroutine)

    def call_soon(self, function: Callable[..., Any], *args: Any) -> bool:
        """Call `function` on the loop's thread; False when the loop has ended."""
        return self._loop_thread.call_soon(function, *args)

    def cancel_running(self, task: RunningTask, reason: CancelReason) -> bool:
        """Cancel one job. False if it has ended. Thread-safe."""
        run = next((run for run in tuple(self._runs.values()) if run.running_task is task), None)
        return run is not None and self.call_soon(self._cancel, run, reason)

    # --- Celery's side: called on the worker's main thread -------------------------------

    def on_start(self) -> None:
        """See `LoopThread.start`."""
        # Other threads add and remove jobs at any time: iterate over a copy (`tuple`) only.
        self._runs: dict[int, Run] = {}
        self._arrived: deque[Run] = deque()
        self._waiting: deque[Run] = deque()
        self._running = 0
        self._abandoned = 0
        self._numbers = itertools.count(1)
        self._hub: Any = None
        self._refill_due = False
        self._loop_thread = LoopThread(WorkerSettings().watchdog_s)
        self._callbacks = CallbackThread(self.loop)
        self.events = EventBatches(self.loop, self._callbacks)
        TaskPool._instance = self
        self._loop_thread.start()

    def register_with_event_loop(self, loop: Any) -> None:
        """Keep Celery's hub: it sleeps on Redis and has to be woken when a slot becomes free."""
        self._hub = loop

    def room(self) -> int:
        """Number of jobs that Celery may take for free slots."""
        return self.limit - len(worker_state.reserved_requests)

    def adopt_messages(self, channel: Any) -> None:
        """Acknowledge running jobs on the consumer's new connection from now on."""
        for run in tuple(self._runs.values()):
            run.running_task.adopt_message(channel)

    def on_apply(
        self,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        callback: Callable[[Any], None] | None = None,
        accept_callback: Callable[[int, float], None] | None = None,
        timeout_callback: Callable[[bool, float], None] | None = None,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> Run:
        """Start the job, or queue it in the pool; an invalid limit raises ValueError."""
        callbacks = Callbacks(accept_callback, callback, timeout_callback)
        number = next(self._numbers)
        run = Run(
            number,
            TaskCall(*args),
            callbacks,
            self._callbacks,
            self.terminate_job,
            LIMIT_S.validate_python(soft_timeout or self.options.get("soft_timeout")),
            LIMIT_S.validate_python(timeout or self.options.get("timeout")),
        )
        # Before the loop is asked to start it: a `terminate_job` in between must find the job.
        self._runs[run.number] = run
        self._arrived.append(run)
        if len(self._arrived) == 1:  # otherwise the loop has yet to take those before it
            self.call_soon(self._admit)
        return run

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """End a job on Celery's behalf: it was revoked, or the worker hands it back."""
        run = self._runs.get(pid)
        if run is not None:
            # Before the cancellation: the report of the job's end, on another thread, would
            # otherwise contradict what Celery announces itself.
            run.celery_knows = True
            revoked = run.call.task_id in worker_state.revoked
            self.call_soon(self._cancel, run, "terminate" if revoked else "shutdown")

    def grow(self, n: int = 1) -> None:
        """Add `n` slots."""
        self._resize(self.limit + n)
        self.call_soon(self._fill)

    def shrink(self, n: int = 1) -> None:
        """Remove `n` slots; running jobs continue, new ones wait for a free slot.

        Raises:
            ValueError: no slot would be left.
        """
        if self.limit - n < 1:
            raise ValueError(f"cannot remove {n} of {self.limit} slots: one must remain")
        self._resize(self.limit - n)

    def _resize(self, limit: int) -> None:
        self.limit = limit
        for listener in on_resize:
            listener(limit)

    def on_stop(self) -> None:
        """Warm shutdown: let jobs finish for `soft_shutdown_s`, then cancel the rest."""
        self._drain(WorkerSettings().soft_shutdown_s)

    def on_terminate(self) -> None:
        """Cold shutdown: cancel every job and wait while they hand their work back."""
        self._drain(0.0)

    def _drain(self, patience_s: float) -> None:
        cancel_at = time.monotonic() + patience_s
        deadline: float | None = None
        # A signal handler may call this while the main thread is already in it, and would wait
        # forever for a lock that it holds itself: hence it sleeps.
        while self._runs:
            if deadline is None and (shutdown_is_cold() or time.monotonic() >= cancel_at):
                deadline = time.monotonic() + 3 * self.cancel_grace_s
                for run in tuple(self._runs.values()):
                    self.call_soon(self._cancel, run, "shutdown")
            if deadline is not None and time.monotonic() > deadline:
                logger.error(
                    "%d job(s) did not end; the worker ends without them.",
                    len(self._runs),
                    extra={"action": "jobs_left"},
                )
                break
            time.sleep(DRAIN_POLL_S)
        self._close()

    def _close(self) -> None:
        self._loop_thread.stop()
        self.events.publish()
        self._callbacks.close()

    def _get_info(self) -> dict[str, Any]:
        """Return what `inspect stats` shows."""
        info: dict[str, Any] = super()._get_info()
        return info | {
            "running": self._running,
            "waiting": len(self._waiting),
            "abandoned": self._abandoned,
            "refused-messages": self.screen.refused,
            "loop-stalls": self._loop_thread.watchdog.stalls,
            "threads": threading.active_count(),
        }

    # --- slots: on the loop's thread only -------------------------------------------------

    def _admit(self) -> None:
        while self._arrived:
            run = self._arrived.popleft()
            if not run.ended:  # cancelled by another thread before it got here
                self._waiting.append(run)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._running < self.limit:
            self._start(self._waiting.popleft())

    def _start(self, run: Run) -> None:
        self._running += 1
        run.started = time.monotonic()
        if run.celery_knows:  # it was terminated meanwhile, and Celery acknowledges it now
            self._callbacks.submit(run.accept, run.started)
        else:
            run.accept(run.started)
        if run.soft_limit_s:
            run.timers.append(self.loop.call_later(run.soft_limit_s, self._soft_limit, run))
        if run.hard_limit_s:
            run.timers.append(self.loop.call_later(run.hard_limit_s, self._cancel, run, "hard"))
        run.task = self.loop.create_task(self._trace(run), name=f"job-{run.call.task_id}")
        run.task.add_done_callback(lambda task: self._on_done(run, task))

    async def _trace(self, run: Run) -> Any:
        args, kwargs = arguments(run.call)
        task = self.app.tasks[run.call.name]
        if not inspect.iscoroutinefunction(inspect.unwrap(task.run)):
            raise TypeError(
                f"{run.call.name} is not a coroutine function: this pool runs no others"
            )
        run.body = task.run(*args, **kwargs)
        return await run_body(run.body, run.running_task, run.soft_limit_s)

    def _soft_limit(self, run: Run) -> None:
        if run.ended or run.running_task.cancel_reason or run.task is None:
            return
        run.running_task.cancel_reason = "soft"
        run.task.cancel()
        self._callbacks.submit(partial(run.report_timeout, soft=True))

    def _cancel(self, run: Run, reason: CancelReason) -> None:
        """Cancel a job. The first reason stays, unless it is the soft limit."""
        if run.ended or run.running_task.cancel_reason not in (None, "soft"):
            return
        run.running_task.cancel_reason = reason
        if run.task is not None:
            self._escalate(run, 1)
        else:
            if run in self._waiting:
                self._waiting.remove(run)
            self._running += 1  # _end subtracts it again
            self._callbacks.submit(run.accept, time.monotonic())
            self._end(run, None, Terminated(reason))

    def _escalate(self, run: Run, attempt: int) -> None:
        if run.ended or run.task is None:
            return
        if attempt <= 2:
            run.task.cancel()
            again = self.loop.call_later(self.cancel_grace_s, self._escalate, run, attempt + 1)
            run.timers.append(again)
            return
        self._abandoned += 1
        self._log_abandoned(run)
        self._end(run, None, Terminated(run.running_task.cancel_reason))

    def _log_abandoned(self, run: Run) -> None:
        count, reason = self._abandoned, run.running_task.cancel_reason
        extra = {"action": "job_abandoned", "task_id": run.call.task_id}
        if count <= STACKS_SHOWN:
            logger.error(
                "Job %s swallowed two cancellations (%s) and is given up. It waits here:\n%s",
                run.call.task_id,
                reason,
                suspended_stack(run.body),
                extra=extra,
            )
        elif count.bit_count() == 1:  # 16, 32, ...: a thousand of them are seven lines
            text = "%d jobs have swallowed two cancellations (%s) and are given up by now"
            logger.error(text, count, reason, extra=extra)

    def _on_done(self, run: Run, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if run.ended:  # it was given up, and has ended now
            self._abandoned -= 1
        elif task.cancelled():
            self._end(run, None, run.cancellation())
        elif error is not None:
            self._end(run, None, error)
        else:
            self._end(run, task.result(), None)

    def _end(self, run: Run, value: Any, error: BaseException | None) -> None:
        run.ended = True
        for timer in run.timers:
            timer.cancel()
        runtime_s = time.monotonic() - run.started if run.started else 0.0
        outcome = TaskOutcome(value, error, runtime_s)
        if run.reports_at_once(outcome):
            self._report(run, outcome)
        else:
            self._callbacks.submit(self._report, run, outcome)
        self._running -= 1
        self._fill()

    # --- on the loop's or the callback thread -----------------------------------------------

    def _report(self, run: Run, outcome: TaskOutcome) -> None:
        try:
            run.report(self.app, outcome)
        finally:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.number, None)
        if not self._refill_due:
            self._refill_due = True
            self.call_soon(self.loop.call_later, REFILL_DELAY_S, self._refill)

    def _refill(self) -> None:
        self._refill_due = False  # before Celery looks: a slot freed later asks again
        if self._hub is not None:
            self._hub.call_soon(_nothing)


def _nothing() -> None:
    """Wake Celery's hub, which then sees the free slots."""


class _SteadyChannel(bootsteps.StartStopStep):  # type: ignore[misc]
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


class EventBatches:
    """Publishes what a consumer's event dispatcher has buffered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: CallbackThread) -> None:
        self._loop = loop
        self._thread = thread
        self._dispatcher: Any = None
        self._due = False
        """Whether the buffer will be published without further notice."""
        self._interval_s = EVENTS_INTERVAL_S

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
        self._interval_s = min(
            max(EVENTS_INTERVAL_S, spent_s / EVENTS_SHARE_OF_TIME), _EVENTS_INTERVAL_MAX_S
        )

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
