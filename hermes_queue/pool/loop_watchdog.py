"""A thread that notices when an event loop is blocked and logs where."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

logger = logging.getLogger(__name__)


class LoopWatchdog:
    """Logs the stack of a loop's thread once per stall, and a line when the loop is back.

    Args:
        loop: The running loop to watch.
        thread_id: `threading.get_ident()` of the thread the loop runs on.
        stall_s: Seconds without a tick that count as a stall.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int, stall_s: float) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._stall_s = stall_s
        self._pause_s = min(0.5, stall_s / 5)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hermes-watchdog", daemon=True)
        self.stalls = 0
        """How many stalls were seen, for `inspect stats`."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Cease to watch. Returns at once, also while the loop is blocked."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.wait(self._pause_s):
            ticked = threading.Event()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(ticked.set)
            except RuntimeError:  # the loop is closed
                return
            if ticked.wait(self._stall_s) or self._stopping.is_set():
                continue
            self.stalls += 1
            self._report_stall()
            while not ticked.wait(self._pause_s):
                if self._stopping.is_set():
                    return
            blocked_s = time.monotonic() - asked
            logger.warning(
                "The event loop ticks again after %.1f s.",
                blocked_s,
                extra={"action": "loop_recovered", "blocked_s": blocked_s},
            )

    def _report_stall(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame else "(its thread is gone)\n"
        logger.error(
            "The event loop has not ticked for %.1f s; every job of this worker waits. "
            "Its thread is here:\n%s",
            self._stall_s,
            stack,
            extra={"action": "loop_blocked", "stall_s": self._stall_s},
        )
