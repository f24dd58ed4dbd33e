"""A thread that detects a blocked event loop and logs its stack."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)


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
