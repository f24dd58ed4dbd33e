"""One attempt of a job in this process: the same rollout as a worker's, without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hermes_queue.agent.loop import BeforeTurn
from hermes_queue.errors import Cancelled, EnvBug, TrajectoryFailure, foreign_error
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.settings import ModelSettings, WorkerSettings
from workers.attempt import Attempt, Services
from workers.bounds.limits import StageLimits
from workers.draft import Draft
from workers.rollout import rollout


async def run_attempt(
    draft: Draft,
    row: Mapping[str, Any],
    backend: SandboxBackend,
    *,
    definition: Mapping[str, Any] | None,
    on_measured: Callable[[], Awaitable[None]],
    before_turn: BeforeTurn | None = None,
) -> TrajectoryFailure | None:
    """Fill `draft`; returns the failure, if any, with the env's own error as its cause.

    A cancellation is the failure `Cancelled`. There are no retries: whoever plays sees why.
    """
    try:
        bounds = StageLimits.of(WorkerSettings())
        attempt = Attempt(
            draft=draft,
            row=row,
            services=Services(backend, ModelSettings(), bounds=bounds),
            definition=definition,
            on_measured=on_measured,
            before_turn=before_turn,
        )
        await rollout(attempt)
    except TrajectoryFailure as failure:
        return failure
    except BaseException as error:  # noqa: BLE001 - an env may raise anything, e.g. SystemExit
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            return at_stage(Cancelled("interrupted"), draft)
        return at_stage(foreign_bug(error), draft)
    return None


def foreign_bug(error: BaseException) -> EnvBug:
    """The failure of a trajectory whose env or agent raised `error`, which is its cause."""
    bug = EnvBug(foreign_error(error))
    bug.__cause__ = error
    return bug


def at_stage(failure: TrajectoryFailure, draft: Draft) -> TrajectoryFailure:
    """`failure`, in the stage that the attempt has reached."""
    failure.stage = draft.clock.current
    return failure
