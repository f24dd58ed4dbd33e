"""All attempts of one task, in the order in which they decide.

An attempt is the rollout of a worker, in this process, without Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_plugins.harbor.task import GradingMode
from hermes_plugins.harbor.validation.measured import (
    AttemptResult,
    MeasuredMode,
    TaskToValidate,
)
from hermes_plugins.harbor.validation.poisoned import is_marked, poisoned_row
from hermes_plugins.play.attempt import run_attempt
from hermes_queue.errors import Cancelled, TrajectoryFailure
from hermes_queue.models import TrajectoryJob
from hermes_queue.sandbox.base import SandboxBackend
from workers.clock import Clock
from workers.draft import Draft

_ERROR_CHARACTERS = 2000


class Course:
    """Runs the attempts of tasks on one backend, at most as many at once as it has slots."""

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        slots: int,
        repeat: int,
        all_modes: bool,
        report: Callable[[str], None],
    ) -> None:
        """Measures on a backend.

        Args:
            backend: Has been started.
            slots: Most attempts at once.
            repeat: How often the solution, and the agent that does nothing, run in each mode.
            all_modes: Also measure modes that are laxer than the one that decides.
            report: Gets a line for people after each column.
        """
        self._backend = backend
        self._free = asyncio.Semaphore(slots)
        self._repeat, self._all_modes, self._report = repeat, all_modes, report

    async def run(self, task: TaskToValidate) -> list[MeasuredMode]:
        """The results of one task; modes that are not needed are not there."""
        found: list[MeasuredMode] = []
        for mode in task.modes:
            measured = await self._mode(task, mode)
            found.append(measured)
            decided = measured.verdict not in ("oracle_fails", "flaky")
            if measured.verdict == "failed" or (decided and not self._all_modes):
                break
        return found

    async def _mode(self, task: TaskToValidate, mode: GradingMode) -> MeasuredMode:
        """Columns that cannot change the verdict any more are left out."""
        row = {**task.row, "grading": mode}
        name = f"{row['instance_id']}  {mode}"
        oracle: list[AttemptResult] = []
        if task.oracle is not None:
            oracle = await self._several(row, task.oracle)
            self._report(f"{name}  oracle {_shown(oracle)}")
            if (measured := MeasuredMode(mode, oracle)).verdict != "valid":
                return measured
        nop = await self._several(row, task.nop)
        self._report(f"{name}  nop {_shown(nop)}")
        if (measured := MeasuredMode(mode, oracle, nop)).verdict not in ("valid", "no_oracle"):
            return measured
        tamper = await self._tampers(row, task.tampers)
        measured = MeasuredMode(mode, oracle, nop, tamper)
        forged = f" ({', '.join(measured.forged)})" if measured.forged else ""
        self._report(f"{name}  tamper {_shown(list(tamper.values()))}{forged}")
        return await self._poisoned(row, task, measured)

    async def _poisoned(
        self, row: Mapping[str, Any], task: TaskToValidate, measured: MeasuredMode
    ) -> MeasuredMode:
        """Whether the tests run the agent's code, of a task that is valid otherwise."""
        if task.oracle is None or measured.verdict != "valid":
            return measured
        try:
            async with poisoned_row(row) as changed:
                result = await self._one(changed, task.oracle)
        except (TrajectoryFailure, OSError) as error:
            result = AttemptResult(None, 0.0, f"the solution cannot be changed: {error}")
        runs = None if result.score is None else is_marked(result)
        said = {True: "run the agent's code", False: "run no code of the agent's", None: "failed"}
        self._report(f"{row['instance_id']}  {measured.mode}  tests {said[runs]}")
        return replace(measured, poisoned=result, executes_agent_code=runs)

    async def _several(self, row: Mapping[str, Any], job: TrajectoryJob) -> list[AttemptResult]:
        return await self._all(row, [job] * self._repeat)

    async def _tampers(
        self, row: Mapping[str, Any], jobs: Mapping[str, TrajectoryJob]
    ) -> dict[str, AttemptResult]:
        return dict(zip(jobs, await self._all(row, list(jobs.values())), strict=True))

    async def _all(
        self, row: Mapping[str, Any], jobs: Sequence[TrajectoryJob]
    ) -> list[AttemptResult]:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._one(row, job)) for job in jobs]
        return [each.result() for each in running]

    async def _one(self, row: Mapping[str, Any], job: TrajectoryJob) -> AttemptResult:
        async with self._free:
            return await _measure(job, row, self._backend)


def _shown(results: Sequence[AttemptResult]) -> str:
    """Scores of one column, e.g. `1 1 failed`."""
    scores = ["failed" if each.score is None else f"{each.score:g}" for each in results]
    errors = sorted({each.error for each in results if each.error})
    return " ".join(scores) + "".join(f"\n    {error[:500]}" for error in errors)


async def _measure(
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
        return AttemptResult(None, took, error[:_ERROR_CHARACTERS], image)
    verdict = draft.verdict
    if verdict is None or verdict.score is None:
        return AttemptResult(None, took, "verify: there is no score", image)
    rewards = {name: float(reward) for name, reward in verdict.rewards.items()}
    return AttemptResult(verdict.score, took, "", image, rewards, verdict.report)


async def _nothing() -> None:
    pass
