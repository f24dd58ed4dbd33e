"""Whose fault a failed call is: that of the model's server, or of what was asked.

A policy chooses what is asked: in the calls that it makes from a program's slot, in what it says,
and in what it has its commands print. A prompt at which a server fails would let it choose that
nothing is scored. So the first call of the attempt, which was answered, is made once more.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from hermes_queue.agent.budget import AttemptBudget
from hermes_queue.agent.chat import ChatClient
from hermes_queue.errors import (
    ContextLengthExceeded,
    ModelConfigError,
    ModelError,
    TrajectoryFailure,
)
from hermes_queue.models import Message

T = TypeVar("T")

_AT_FAULT = frozenset({400, 422, 500})
"""Statuses of a server that has read the call. One that is overloaded, restarts or hides behind a
gateway answers otherwise or not at all, and a malformed reply is nothing that was asked for."""

FIRST_AGAIN_TOKENS = 16
"""Cap of the answer that shows whether a server works."""
FIRST_AGAIN_S = 10.0
"""Least time for it, lest an agent waits for its deadline with a call at which servers fail. Twice
that is less than what the stage has beyond the agent's time."""


class CallAtFault(Exception):
    """The server has failed at this call twice, and answered another one after each time."""


async def answered(
    call: Callable[[], Awaitable[T]], still_works: Callable[[TrajectoryFailure], Awaitable[bool]]
) -> T:
    """What `call` returns, tried twice if the server has failed at it and `still_works`.

    A server that was away for a while answers the second time.

    Raises:
        CallAtFault: it fails twice, and the server works.
        ModelError, ModelConfigError: it is the server that fails, or its setting that is wrong.
        Exception: whatever else `call` raises.
    """
    why = ""
    for _ in range(2):
        try:
            return await call()
        except ContextLengthExceeded:
            raise
        except (ModelError, ModelConfigError) as error:
            if _status(error) not in _AT_FAULT or not await still_works(error):
                raise
            why = str(error)
    raise CallAtFault(why)


async def answers_again(
    chat: ChatClient,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    budget: AttemptBudget,
) -> bool:
    """Whether the server answers a call that it has answered before; no part of the attempt."""
    deadline = max(budget.deadline, time.monotonic() + FIRST_AGAIN_S)
    for cap in (FIRST_AGAIN_TOKENS, None):  # the sampling may not go with a cap so low
        sampling = budget.capped(budget.reply_cap(None), cap)
        try:
            await chat.complete(messages, tools, sampling, deadline)
        except (TrajectoryFailure, TimeoutError) as error:
            if _status(error) not in (400, 422):
                return False
        else:
            return True
    return False


def _status(error: Exception) -> int | None:
    status: int | None = getattr(error.__cause__, "status_code", None)
    return status
