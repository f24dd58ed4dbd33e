"""Actions on one worker, by remote control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hermes_plugins.view.actions.base import Acting, ActionArguments, Given, OperatorAction, options
from hermes_plugins.view.present import label
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.ledger.ledger import Ledger

_TIMEOUT_S = 5.0
_SIZE_MAX = 10_000
_SAID_MAX = 500
"""Characters of a worker's objection."""
Count = Annotated[int, Field(ge=1, le=_SIZE_MAX)]


class OfWorker(ActionArguments):
    """A worker, by the name in the overview."""

    worker: Given


class WorkerSize(OfWorker):
    """How much a worker does at a time."""

    concurrency: Count
    slots: Count | None = None
    """Of the sandbox backend; None = the same."""


def _running(ledger: Ledger, given: OfWorker) -> int:
    """Trajectories that it runs; raises ConfigurationError: there is no such worker."""
    for worker in ledger.workers():
        if worker.get("name") == given.worker:
            return int(worker.get("running", 0))
    raise ConfigurationError(f"there is no live worker {given.worker!r}")


def _tell(acting: Acting, given: OfWorker, command: str, arguments: Mapping[str, Any]) -> int:
    try:
        from hermes_queue.broker.pool.remote_control import ask
    except ImportError as error:
        raise ConfigurationError(
            f"talking to workers needs the package {error.name}: "
            "pip install 'hermes-queue[producer]'"
        ) from error
    met = _running(acting.ledger, given)
    answers = ask(command, [given.worker], arguments, timeout_s=_TIMEOUT_S, url=acting.url)
    said = answers.get(given.worker)
    if not isinstance(said, Mapping):
        raise RedisUnavailable(f"{given.worker} has not answered within {_TIMEOUT_S:.0f} s")
    if "error" in said:
        # It goes into the log, of which it must not make further lines.
        raise ConfigurationError(f"{given.worker}: {label(said['error'], _SAID_MAX)}")
    return met


def _size(acting: Acting, given: WorkerSize) -> int:
    sizes = {"concurrency": given.concurrency, "slots": given.slots}
    return _tell(acting, given, "set_limits", sizes)


def _size_command(given: WorkerSize) -> list[str]:
    slots = str(given.slots or "")
    sizes = options(concurrency=str(given.concurrency), slots=slots)
    return ["workers", "limits", given.worker, *sizes]


ACTIONS: tuple[OperatorAction[Any], ...] = (
    OperatorAction(
        "worker_pause",
        "Take no more jobs; running trajectories continue.",
        OfWorker,
        _running,
        lambda acting, given: _tell(acting, given, "pause", {"lanes": []}),
        lambda given: ["workers", "pause", given.worker],
    ),
    OperatorAction(
        "worker_resume",
        "Take jobs again.",
        OfWorker,
        _running,
        lambda acting, given: _tell(acting, given, "resume", {"lanes": []}),
        lambda given: ["workers", "resume", given.worker],
    ),
    OperatorAction(
        "worker_drain",
        "Take no more jobs, and exit after the last trajectory.",
        OfWorker,
        _running,
        lambda acting, given: _tell(acting, given, "drain", {}),
        lambda given: ["workers", "drain", given.worker],
    ),
    OperatorAction(
        "worker_size",
        "Set how many trajectories run at a time, until it restarts.",
        WorkerSize,
        _running,
        _size,
        _size_command,
    ),
)
