"""The way from the slot that an agent has left to a verdict."""

from __future__ import annotations

from typing import Any

from envs.base import Verdict
from hermes_plugins.harbor import boxes
from hermes_plugins.harbor.grading import services
from hermes_plugins.harbor.grading.disk import check_disk
from hermes_plugins.harbor.grading.modes import (
    GradingBox,
    NotTaken,
    make_box,
    reported,
    untouched,
)
from hermes_plugins.harbor.grading.suspects import shadowing
from hermes_plugins.harbor.grading.testrun import TestRun, run_tests
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.task import GradingMode, TaskFolder
from hermes_queue.errors import EnvInfraError, SandboxError, SlotLost
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.context import SlotContext

CONTRADICTED = "contradicted"
"""The reason of a whole reward for tests of which one failed by their own account: it is not known
which of the two is true, so that nothing may be learned from it."""


def mode_of(item: HarborItem) -> GradingMode:
    """The mode in which the item is graded: as it was validated, else the strictest."""
    if item.folder.separate:
        return "separate"
    return item.grading or "transplant"


async def grade(item: HarborItem, context: SlotContext) -> Verdict:
    """Measure what the agent left.

    Raises:
        EnvInfraError: the tests give no reward on an untouched box either.
        EnvBug: what the tests fetch cannot be had.
        SandboxError: the sandbox failed.
        DeadlineExceeded: the stage ran out of time.
    """
    task, mode = item.folder, mode_of(item)
    report = _facts(task, mode)
    try:
        made = await make_box(context, task, mode)
        run = await _run(context, task, made)
    except NotTaken as error:
        return Verdict(0.0, report=error.report | report)
    report |= made.report | run.report
    report["notes"] += made.notes
    if run.reward is None:
        await _control(context, task, mode, run.why)
        return Verdict(0.0, report={"reason": "verifier_broken", "detail": run.why, **report})
    reward = run.reward
    if reward.score >= 1 and report.get("tests", {}).get("failed", {}).get("names"):
        flagged = {"reason": CONTRADICTED, "measured": reward.score, "flags": [CONTRADICTED]}
        return Verdict(0.0, report=report | flagged, trainable=False)
    if reward.score > 0 and (suspect := await _suspects(context, made)):
        report |= {"reason": "suspect", "measured": reward.score, **reported("suspect", suspect)}
        return Verdict(0.0, report=report)
    return Verdict(reward.score, reward.rewards, {"reason": "graded", **report})


async def _run(context: SlotContext, task: TaskFolder, made: GradingBox) -> TestRun:
    """Run the tests; where an agent's programs run, a failure may be their doing."""
    try:
        run = await run_tests(context, task, made)
        if run.reward is None or run.reward.score < 1:
            await services.check_not_killed(context)
            await check_disk(context)
        return run
    except SlotLost:
        raise
    except SandboxError as error:
        if suspect := await _suspects(context, made):
            raise NotTaken("suspect", str(error), suspect) from error
        if isinstance(error, FilesRefused):  # the untouched box says whose doing it is
            await check_disk(context)
            return TestRun(None, str(error))
        raise


def _facts(task: TaskFolder, mode: GradingMode) -> dict[str, Any]:
    notes = list(task.notes)
    for granted in (boxes.granted(task), boxes.granted(task, grading=True)):
        if granted.note:
            notes.append(granted.note)
    return {"mode": mode, "task_digest": task.digest, "notes": notes}


async def _suspects(context: SlotContext, made: GradingBox) -> list[str]:
    """What may have run in place of the image's programs. Only `restart` leaves room for it."""
    if made.decisive is None:
        return []
    return await shadowing(context, made.changes, made.decisive, made.users)


async def _control(context: SlotContext, task: TaskFolder, mode: GradingMode, why: str) -> None:
    """Return if the tests give a reward on an untouched box; raises EnvInfraError else."""
    made = await untouched(context, task, mode)
    try:
        run = await run_tests(context, task, made)
    except FilesRefused as error:
        raise EnvInfraError(
            f"the tests cannot run, on an untouched box neither: {error}"
        ) from error
    if run.reward is None:
        output = str(run.report.get("output", ""))[-500:]
        raise EnvInfraError(
            f"the tests give no reward, on an untouched box neither: {why}; {run.why}: {output}"
        )
