"""Hooks: what plugins add to an attempt, by the targets that they declare."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Protocol

from envs.base import Verdict
from hermes_queue.core import added
from hermes_queue.errors import ModelConfigError
from workers.attempt import Attempt


class After(Protocol):
    """Sees the verdict of one attempt, and may change it until it is published."""

    def provisional(self, verdict: Verdict) -> Verdict | None:
        """What counts if the attempt ends before `final` has answered; None = it has no score."""

    async def final(self, verdict: Verdict) -> Verdict:
        """The verdict; awaited when the slot has been released.

        Raises:
            TrajectoryFailure: there is none; the attempt has failed.
        """


OpenAfter = Callable[[Attempt], Awaitable[After | None]]
"""Made in the stage `load`; None = this attempt has none. Raises TrajectoryFailure."""


async def opened(attempt: Attempt) -> tuple[After, ...]:
    """The hooks of an attempt whose env and item are loaded.

    Raises:
        ModelConfigError: the job names a judge, and no plugin provides one.
        TrajectoryFailure: see `OpenAfter`.
    """
    factories = _after()
    if attempt.draft.job.judge is not None and not factories:
        raise ModelConfigError("the job names a judge, and no plugin of this worker provides one")
    found = [await make(attempt) for make in factories]
    return tuple(each for each in found if each is not None)


@cache
def _after() -> tuple[OpenAfter, ...]:
    return tuple(added("after"))
