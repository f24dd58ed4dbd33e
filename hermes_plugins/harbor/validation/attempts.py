"""One attempt of a validation: the rollout of a worker, in this process, without Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from hermes_plugins.harbor.validation.measured import AttemptResult
from hermes_plugins.play.attempt import run_attempt
from hermes_queue.errors import Cancelled
from hermes_queue.models import TrajectoryJob
from hermes_queue.sandbox.base import SandboxBackend
from workers.clock import Clock
from workers.draft import Draft

ERROR_CHARACTERS = 2000


async def measure(
    job: TrajectoryJob, row: Mapping[str, Any], backend: SandboxBackend
) -> AttemptResult:
    """Run `job` once on a row.

    Raises:
        asyncio.CancelledError: it was cancelled; its slot has been given back.
    """
    draft = Draft(job=job, attempt=1, epoch=1, clock=Clock(job.limits.total_timeout_s))
    begun = time.monotonic()
    failure = await run_attempt(draft, row, backend, definition=None, on_measured=_nothing)
    took = round(time.monotonic() - begun, 2)
    if isinstance(failure, Cancelled):
        raise asyncio.CancelledError
    image = draft.image or ""
    if failure is not None:
        error = f"{failure.stage}: {type(failure).__name__}: {failure}"
        return AttemptResult(None, took, error[:ERROR_CHARACTERS], image)
    verdict = draft.verdict
    if verdict is None or verdict.score is None:
        return AttemptResult(None, took, "verify: there is no score", image)
    rewards = {name: float(reward) for name, reward in verdict.rewards.items()}
    return AttemptResult(verdict.score, took, "", image, rewards, verdict.report)


async def _nothing() -> None:
    pass
