"""The steps around the body of a coroutine task: its arguments before, Celery's record after.

Celery's own tracer (`celery.app.trace`) calls the body itself and therefore needs a thread per
running task. Of what it does beside, a message gets nothing here: results, retries and further
jobs are the ledger's, so there is no result backend, and links and chains are not followed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.task import Context
from celery.app.trace import LOG_SUCCESS, TraceInfo
from celery.app.trace import info as log_outcome
from celery.app.trace import logger as celery_logger
from celery.utils.saferepr import saferepr

logger = logging.getLogger(__name__)

CallbackResult = tuple[int, Any, float]
"""(failed, `ExceptionInfo` or repr of the value, runtime in s): the argument of
`Request.on_success`."""


class TaskCall(NamedTuple):
    """The arguments that Celery passes to a tracer, in its order."""

    name: str
    task_id: str
    request: dict[str, Any]
    body: Any
    content_type: str | None
    content_encoding: str | None


class TaskOutcome(NamedTuple):
    """Result of a body: its value, or the exception it raised."""

    value: Any
    error: BaseException | None
    runtime_s: float


def arguments(call: TaskCall) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the task's positional and keyword arguments, which Celery has decoded."""
    return call.request["args"], call.request["kwargs"]


def conclude(task: Any, call: TaskCall, outcome: TaskOutcome) -> CallbackResult:
    """Log the outcome as Celery's tracer does."""
    try:
        if outcome.error is None:
            return 0, _log_success(task, call, outcome), outcome.runtime_s
        context = Context(call.request, called_directly=False)
        info = exception_info(outcome.error)
        failure = TraceInfo(states.FAILURE, outcome.error)
        failure.handle_error_state(task, context, call_errbacks=False)
    except Exception as error:
        # Celery has to learn of the end in any case: until then the job occupies one of its slots.
        logger.exception(
            "Task %s[%s] could not be concluded.",
            call.name,
            call.task_id,
            extra={"action": "callback_failed"},
        )
        info = exception_info(error)
    return 1, info, outcome.runtime_s


def _log_success(task: Any, call: TaskCall, outcome: TaskOutcome) -> str:
    shown: str = saferepr(outcome.value, task.resultrepr_maxsize)
    if not celery_logger.isEnabledFor(logging.INFO):
        return shown
    facts = {
        "id": call.task_id,
        "name": call.request.get("shadow") or task.name,
        "return_value": shown,
        "runtime": outcome.runtime_s,
        "args": call.request.get("argsrepr"),
        "kwargs": call.request.get("kwargsrepr"),
    }
    log_outcome(LOG_SUCCESS, facts)
    return shown


def exception_info(error: BaseException) -> Any:
    """Return `error` in the form that Celery's callbacks take."""
    try:
        raise error  # ExceptionInfo needs a traceback, and this one may never have been raised
    except BaseException:  # noqa: BLE001 - any error is described
        info = ExceptionInfo()
    info.exception = error  # without its wrapper, which events would show
    return info
