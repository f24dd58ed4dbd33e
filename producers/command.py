"""Exit codes and messages of the commands that make datasets."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_ISOLATION,
    ConfigurationError,
    HermesQueueError,
    IsolationUnavailable,
    TrajectoryFailure,
)
from hermes_queue.installation import check_installation
from hermes_queue.settings import check_environment
from hermes_queue.terminal.output import echo

_EXTRAS = {"celery": "producer", "kombu": "producer", "rich": "producer", "click": "worker"}
"""Modules that a plain `pip install hermes-queue` lacks, and the extra that has them."""


def run_command(command: Callable[[], int], *, interrupted: str, backend: str | None = None) -> int:
    """Run `command` and return its exit code (see `hermes_queue.errors`).

    Args:
        command: the work.
        interrupted: what has been kept, for the message after Ctrl-C or SIGTERM.
        backend: as for `check_environment`.
    """
    previous = signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        check_installation()
        check_environment(backend)
        return command()
    except TrajectoryFailure as error:
        isolation = isinstance(error, IsolationUnavailable)
        return fail(str(error), EXIT_ISOLATION if isolation else EXIT_FAILED)
    except HermesQueueError as error:
        return fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return fail(interrupted, EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return fail(
            f"{error.name} is not installed: pip install 'hermes-queue[{extra}]'",
            ConfigurationError.exit_code,
        )
    finally:
        signal.signal(signal.SIGTERM, previous)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    # While asyncio runs, its handler cancels the main task. KeyboardInterrupt, raised wherever the
    # loop happens to be, would end the loop before the tasks have cleaned up.
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


def fail(message: str, exit_code: int) -> int:
    """Print an error message and return the exit code."""
    echo(f"error: {message}", err=True)
    return exit_code
