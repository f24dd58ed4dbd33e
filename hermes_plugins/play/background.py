"""An event loop on a thread of its own, so that the main thread can read from the terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

_START_S = 10.0

T = TypeVar("T")
U = TypeVar("U")


class LoopEnded(Exception):
    """Something on the loop ended it with SystemExit or KeyboardInterrupt, which is the cause."""


class BackgroundLoop(Generic[T]):
    """Runs one coroutine once it is started; `result` is done when it and the loop have ended.

    It has what the coroutine returns or raises, or `LoopEnded`.

    The thread does not keep the process alive: a second Ctrl-C must end one that hangs.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.result: Future[T] = Future()
        self._work = work
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name="play", daemon=True)

    def start(self) -> None:
        """Begin; a caller who is interrupted meanwhile has to call `cancel`."""
        self._thread.start()
        self._begun.wait()

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop call `function` soon; does nothing once it has ended."""
        if not self.result.done():
            self._loop.call_soon_threadsafe(function)

    def wait(self, work: Coroutine[Any, Any, U]) -> U:
        """The result of another coroutine on the loop, which is cancelled if this is interrupted.

        Raises whatever it raises.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the coroutine; `result` says when it has ended."""
        self._is_cancelled = True  # before the question whether it has begun, see `_main`
        if not self._begun.wait(_START_S):
            self.result.set_exception(LoopEnded())
        self.call(self._cancel_once)

    def _cancel_once(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _run(self) -> None:
        try:
            value = asyncio.run(self._main())
        except (SystemExit, KeyboardInterrupt) as error:  # must not look like one of ours
            ended = LoopEnded()
            ended.__cause__ = error
            self.result.set_exception(ended)
        except BaseException as error:  # noqa: BLE001 - passed to the thread that waits for it
            self.result.set_exception(error)
        else:
            self.result.set_result(value)
        finally:
            self._begun.set()

    async def _main(self) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        if self._is_cancelled:
            self._cancel_once()
        return await self._work()
