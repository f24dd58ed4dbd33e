"""One action: what it takes, what it meets, what it does, and how a shell says the same."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger.ledger import Ledger

REASON_MAX = 200
ONE_CALL_MAX = 500
"""Trajectories or letters that one request acts on; it is repeated for the rest."""
ONE_CALL_S = 15.0

Given = Annotated[
    str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""A name or an id."""


class ActionArguments(BaseModel):
    """Of every action."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


A = TypeVar("A", bound=ActionArguments)


@dataclass(frozen=True)
class Acting:
    """With what an action is done."""

    ledger: Ledger
    """Of a user that may write."""
    url: str | None
    """Its Redis, for asking workers; None = as the settings say."""
    reason: str
    """Who, and why: `by NAME: REASON`."""
    stopping: Callable[[], bool]
    """Whether the server is about to end: what takes long leaves the rest undone."""


@dataclass(frozen=True)
class OperatorAction(Generic[A]):
    """One row of the table."""

    name: str
    help: str
    arguments: type[A]
    meets: Callable[[Ledger, A], int]
    """How many jobs or letters it would act on. Only reads; ConfigurationError: none such."""
    act: Callable[[Acting, A], int]
    """Do it; returns how many it has acted on."""
    command: Callable[[A], list[str]]
    """The words behind `hermes-queue`."""
    confirm: Callable[[A], str] | None = None
    """What is to be typed first."""
    takes_reason: bool = False
    """Whether the command has the flag --reason."""

    def command_line(self, arguments: A, reason: str = "") -> str:
        """What does the same in a shell."""
        why = options(reason=reason) if self.takes_reason else []
        return shlex.join(["hermes-queue", *self.command(arguments), *why])


def options(**given: str) -> list[str]:
    """Flags of a command, those without a value left out."""
    return [part for name, value in given.items() if value for part in (f"--{name}", value)]


def bounded(doing: Iterable[object], stopping: Callable[[], bool]) -> int:
    """Do one after the other, as many as one request has time for; returns their number.

    An error of ours in the middle has a note that says how many were done.
    """
    until = time.monotonic() + ONE_CALL_S
    done = 0
    try:
        for _ in doing:
            done += 1
            if done >= ONE_CALL_MAX or time.monotonic() > until or stopping():
                break
    except HermesQueueError as error:
        if done:
            error.add_note(f"done before that: {done}")
        raise
    return done
