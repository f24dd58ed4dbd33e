"""The event loop of a worker: one watched thread, with hooks at start and stop.

A second thread detects that the loop is blocked and logs its stack.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_ISOLATION,
    HermesQueueError,
    IsolationUnavailable,
    SandboxError,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
Hook = Callable[[], Awaitable[None]]

STOP_HOOKS_TIMEOUT_S = 60.0

on_loop_start: list[Hook] = []
"""Awaited on the loop, in order, before the worker takes its first message. An exception ends the
worker: exit code 3 for `IsolationUnavailable`, otherwise the error's own."""
on_loop_stop: list[Hook] = []
"""Awaited on the loop, in reverse order, after the last job has ended, even if a start hook failed.
Exceptions are logged."""


class LoopThread:
    """Runs an event loop on a separate, watched thread until `stop`."""

    def __init__(self, watchdog_s: float) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="hermes-loop", daemon=True)
        self.watchdog = LoopWatchdog(self.loop, self._thread, watchdog_s)
        self._stopping = False
        self._ended = False

    def start(self) -> None:
        """Start the thread and run the start hooks.

        Raises:
            SystemExit: a start hook failed; the reason is logged.
        """
        self._thread.start()
        self.watchdog.start()
        try:
            self.submit(_call_in_order()).result()
        except Exception as error:
            exit_code = _log_start_failure(error)
            self.stop()
            raise SystemExit(exit_code) from error

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` on the loop. Call it from any other thread.

        Raises:
            RuntimeError: the loop has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def call_soon(self, function: Callable[..., Any], *args: Any) -> bool:
        """Call `function` on the loop's thread; False when the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """Run the stop hooks and end the thread. Idempotent; safe within a signal handler."""
        if self._stopping:  # a signal handler interrupts a stop and would wait for its own end
            return
        self._stopping = True
        try:
            self.submit(_call_and_log()).result(STOP_HOOKS_TIMEOUT_S)
        except (RuntimeError, TimeoutError):
            logger.exception("The stop hooks did not finish.", extra={"action": "stop_failed"})
        self.watchdog.stop()
        # Set before the loop stops: otherwise `_run` might read it too early and start the loop
        # again, which nobody would stop.
        self._ended = True
        self.call_soon(self.loop.stop)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._ended:
                self._run_loop()
        finally:
            self.loop.run_until_complete(_cancel_leftovers())
            self.loop.close()

    def _run_loop(self) -> None:
        """Run until `stop`, or until a task raises an exception that ends the loop.

        asyncio passes SystemExit and KeyboardInterrupt of any task to the caller of
        `run_forever`. The awaiter of that task receives it too; no other job may suffer from it.
        """
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error(
                "A task raised %r; the event loop is resumed.",
                error,
                exc_info=error,
                extra={"action": "loop_resumed"},
            )


async def _call_in_order() -> None:
    for hook in tuple(on_loop_start):
        await hook()


async def _call_and_log() -> None:
    for hook in reversed(tuple(on_loop_stop)):
        try:
            await hook()
        except Exception:
            logger.exception("The stop hook %r failed.", hook, extra={"action": "stop_failed"})


async def _cancel_leftovers() -> None:
    """Cancel background and abandoned tasks once, and wait two seconds for them."""
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    if leftovers:
        await asyncio.wait(leftovers, timeout=2.0)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _log_start_failure(error: Exception) -> int:
    """Log the reason for which the worker cannot start, and return its exit code."""
    # Of an unforeseen error nobody would know where to look without the traceback.
    foreseen = isinstance(error, HermesQueueError | SandboxError)
    logger.critical(
        "The worker cannot start: %s",
        error if foreseen else repr(error),
        exc_info=None if foreseen else error,
        extra={"action": "start_failed"},
    )
    if isinstance(error, IsolationUnavailable):
        return EXIT_ISOLATION
    return error.exit_code if isinstance(error, HermesQueueError) else EXIT_FAILED


class LoopWatchdog:
    """Measures how long a loop has not answered; logs its thread's stack once per stall.

    Args:
        loop: running loop to watch.
        thread: the thread that runs it.
        stall_s: seconds without a tick that count as a stall.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, stall_s: float
    ) -> None:
        self._loop = loop
        self._watched = thread
        self._stall_s = stall_s
        self._pause_s = min(0.5, stall_s / 5)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hermes-watchdog", daemon=True)
        self.stalls = 0
        """Number of stalls so far, for `inspect stats`."""
        self.silent_s = 0.0
        """Seconds since the loop last answered; 0.0 while it answers. Time during which the whole
        process was stopped (SIGSTOP, a suspended machine) is not counted."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Returns at once, even while the loop is blocked."""
        self._stopping.set()

    def stack(self) -> str:
        """Current stack of the loop's thread."""
        frame = sys._current_frames().get(self._watched.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "(its thread is gone)\n"

    def _watch(self) -> None:
        while not self._stopping.wait(self._pause_s):
            ticked = threading.Event()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(ticked.set)
            self._await_tick(ticked)

    def _await_tick(self, ticked: threading.Event) -> None:
        reported, asked = False, time.monotonic()
        while not ticked.wait(self._pause_s):
            if self._stopping.is_set():
                return
            # A much longer wait means that this process did not run at all: its loop had no
            # chance to answer either.
            now = time.monotonic()
            self.silent_s += min(now - asked, 2 * self._pause_s)
            asked = now
            if self.silent_s >= self._stall_s and not reported:
                reported = True
                self.stalls += 1
                _beside(self._log_stall)
        if reported:
            _beside(self._log_recovery, self.silent_s)
        self.silent_s = 0.0

    def _log_stall(self) -> None:
        logger.error(
            "The event loop has not ticked for %.1f s; every job of this worker waits. "
            "Its thread is here:\n%s",
            self._stall_s,
            self.stack(),
            extra={"action": "loop_blocked", "stall_s": self._stall_s},
        )

    def _log_recovery(self, blocked_s: float) -> None:
        logger.warning(
            "The event loop ticks again after %.1f s.",
            blocked_s,
            extra={"action": "loop_recovered", "blocked_s": blocked_s},
        )


def _beside(log: Callable[..., None], *args: object) -> None:
    """Log in another thread.

    The log, or the sources that a stack quotes, may be on the disk that blocks the loop, and the
    watchdog must not be blocked with it.
    """
    threading.Thread(target=log, args=args, name="hermes-stall", daemon=True).start()
