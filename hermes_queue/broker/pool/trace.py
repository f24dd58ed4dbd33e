"""The steps around the body of a coroutine task: decoding before, Celery's bookkeeping after.

Celery's own tracer (`celery.app.trace`) calls the body itself and therefore needs a thread per
running task. Here the body runs on an event loop, so only the two ends are left: `decode` before
it and `conclude` after it. `conclude` blocks (result backend, signals, links) and is called on a
callback thread.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery import canvas, signals, states
from celery.app.task import Context, get_actual_ignore_result
from celery.app.trace import IGNORE_STATES, LOG_SUCCESS, TraceInfo, task_has_custom
from celery.app.trace import info as log_outcome
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.saferepr import saferepr
from kombu.serialization import loads, prepare_accept_content

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


def decode(app: Any, call: TaskCall) -> tuple[list[Any], dict[str, Any]]:
    """Return the task's positional and keyword arguments; completes `call.request`.

    Raises:
        kombu.exceptions.ContentDisallowed: the serializer is not in `accept_content`.
        TypeError, ValueError: the body is not that of a task.
    """
    if call.content_type:
        accept = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
        args, kwargs, embed = loads(  # type: ignore[no-untyped-call]
            call.body, call.content_type, call.content_encoding, accept=accept
        )
    else:
        args, kwargs, embed = call.body
    call.request.update(embed or {}, args=args, kwargs=kwargs, is_eager=False)
    return args, kwargs


def wants_prerun(task: Any) -> bool:
    """Whether anything listens to the start of tasks, which costs a trip to a thread."""
    return bool(signals.task_prerun.receivers) or task_has_custom(task, "before_start")


def prerun(task: Any, call: TaskCall) -> None:
    """Call `task_prerun` receivers and `before_start`; blocks, and raises what they raise."""
    args, kwargs = call.request["args"], call.request["kwargs"]
    signals.task_prerun.send(sender=task, task_id=call.task_id, task=task, args=args, kwargs=kwargs)
    if task_has_custom(task, "before_start"):
        task.before_start(call.task_id, args, kwargs)


def conclude(task: Any, call: TaskCall, outcome: TaskOutcome) -> CallbackResult:
    """Do what Celery's tracer does after a body: store, link, signal, log. Blocks.

    Returns:
        The argument of the request's success callback, for success and failure alike.
    """
    context = Context(call.request, called_directly=False)
    task.request_stack.push(context)
    state, result = states.FAILURE, None
    try:
        state, result = _settle(task, context, outcome)
        if state not in IGNORE_STATES and task_has_custom(task, "after_return"):
            task.after_return(state, outcome.value, context.id, context.args, context.kwargs, None)
    except Exception as error:
        logger.exception(
            "Task %s[%s] could not be concluded.",
            call.name,
            call.task_id,
            extra={"action": "callback_failed"},
        )
        state, result = states.FAILURE, ExceptionInfo((type(error), error, error.__traceback__))
    finally:
        _postrun(task, context, state, outcome)
        task.request_stack.pop()
    return int(state != states.SUCCESS), result, outcome.runtime_s


def _settle(task: Any, context: Any, outcome: TaskOutcome) -> tuple[str, Any]:
    """Record the outcome where Celery records it; returns (state, result for the callback)."""
    try:
        if outcome.error is not None:
            raise outcome.error
        _succeed(task, context, outcome)
    except Reject as error:
        TraceInfo(states.REJECTED, error).handle_reject(task, context)
        return states.REJECTED, ExceptionInfo(internal=True)
    except Ignore as error:
        TraceInfo(states.IGNORED, error).handle_ignore(task, context)
        return states.IGNORED, ExceptionInfo(internal=True)
    except Retry as error:
        info = TraceInfo(states.RETRY, error)
        return states.RETRY, info.handle_error_state(task, context, call_errbacks=False)
    except Exception as error:  # noqa: BLE001 - a failed task is a result
        return states.FAILURE, TraceInfo(states.FAILURE, error).handle_error_state(task, context)
    return states.SUCCESS, saferepr(outcome.value, task.resultrepr_maxsize)


def _succeed(task: Any, context: Any, outcome: TaskOutcome) -> None:
    _send_linked(task.app, context, outcome.value)
    publish = not get_actual_ignore_result(task, context)
    task.backend.mark_as_done(context.id, outcome.value, context, publish)
    if task_has_custom(task, "on_success"):
        task.on_success(outcome.value, context.id, context.args, context.kwargs)
    if signals.task_success.receivers:
        signals.task_success.send(sender=task, result=outcome.value, runtime=outcome.runtime_s)
    log_outcome(
        LOG_SUCCESS,
        {
            "id": context.id,
            "name": context.shadow or task.name,
            "return_value": saferepr(outcome.value, task.resultrepr_maxsize),
            "runtime": outcome.runtime_s,
            "args": context.get("argsrepr"),
            "kwargs": context.get("kwargsrepr"),
        },
    )


def _send_linked(app: Any, context: Any, value: Any) -> None:
    """Send the `link` callbacks and the next step of a chain."""
    options = {"parent_id": context.id, "root_id": context.root_id or context.id}
    for callback in context.callbacks or ():
        canvas.maybe_signature(callback, app=app).apply_async((value,), **options)
    if context.chain:
        following = canvas.maybe_signature(context.chain[-1], app=app)
        following.apply_async((value,), chain=context.chain[:-1], **options)


def _postrun(task: Any, context: Any, state: str, outcome: TaskOutcome) -> None:
    if signals.task_postrun.receivers:
        signals.task_postrun.send(
            sender=task,
            task_id=context.id,
            task=task,
            args=context.args,
            kwargs=context.kwargs,
            retval=outcome.value,
            state=state,
        )
    try:
        task.backend.process_cleanup()
    except Exception:
        logger.exception(
            "Task %s[%s]: process cleanup failed.",
            task.name,
            context.id,
            extra={"action": "callback_failed"},
        )
