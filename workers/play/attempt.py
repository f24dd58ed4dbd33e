"""One attempt of a job in this process: the same rollout as a worker's, without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hermes_queue.agent.loop import BeforeTurn
from hermes_queue.errors import Cancelled, EnvBug, TrajectoryFailure, foreign_error
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.settings import ModelSettings, WorkerSettings
from workers.draft import Draft
from workers.rollout import rollout


async def run_attempt(
    draft: Draft,
    row: Mapping[str, Any],
    backend: SandboxBackend,
    *,
    on_measured: Callable[[], Awaitable[None]],
    before_turn: BeforeTurn | None = None,
) -> TrajectoryFailure | None:
    """Fill `draft`; returns the failure, if any, with the env's own error as its cause.

    A cancellation is the failure `Cancelled`. There are no retries: whoever plays sees why.
    """
    try:
        await rollout(
            draft,
            row,
            backend=backend,
            model=ModelSettings(),
            on_measured=on_measured,
            before_turn=before_turn,
            prepare_limit_s=WorkerSettings().prepare_timeout_s,
        )
    except TrajectoryFailure as failure:
        return failure
    except asyncio.CancelledError:
        return _at(draft, Cancelled("interrupted"))
    except Exception as error:  # noqa: BLE001 - an env may raise anything
        bug = EnvBug(foreign_error(error))
        bug.__cause__ = error
        return _at(draft, bug)
    return None


def _at(draft: Draft, failure: TrajectoryFailure) -> TrajectoryFailure:
    failure.stage = draft.clock.current
    return failure
