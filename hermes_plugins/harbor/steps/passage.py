"""From what an agent left after one step to the beginning of the next.

The box is kept as the agent left it, without its processes, before it is graded: grading takes the
slot for a box of its own. For the next step the slot gets the kept files back, and what the step
brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from envs.base import Verdict
from hermes_plugins.harbor import box, boxes
from hermes_plugins.harbor.grading.grader import grade
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.steps.folders import StepFolder
from hermes_plugins.harbor.task import StepFiles, TaskFolder
from hermes_queue.errors import EnvInfraError, SandboxError, SlotLost
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.image_slots import TooManyChanges

SETUP_FAILED = "setup_failed"


async def grade_step(item: HarborItem, context: SlotContext) -> Verdict:
    """Measure a step that another one may follow, and keep the box for that one.

    Raises:
        SandboxError: as `grade`; or the box cannot be kept, which is not the agent's doing.
    """
    error: SandboxError | None = None
    try:
        await context.keep()
    except SlotLost:
        raise
    except SandboxError as failure:
        error = failure
    verdict = await grade(item, context)
    if error is None:
        return verdict
    if isinstance(error, TooManyChanges) or verdict.report["reason"] in ("unreadable", "too_large"):
        return verdict  # whose doing it is was found out: nothing can follow on such a box
    if not isinstance(error, FilesRefused):
        raise error
    await context.renew()  # an untouched box says whose doing it is
    await context.restart()
    await context.changes()
    return verdict


async def begin_first(context: SlotContext, task: TaskFolder) -> None:
    """What the first step brings along, in a box that is ready.

    Raises:
        EnvInfraError: it fails.
        SandboxRejected: a step follows, and the backend cannot keep the box for it.
        SandboxError: the sandbox failed.
    """
    if isinstance(task, StepFolder) and not task.is_last:
        context.need_commits()
    for stage in task.stages:
        try:
            await box.begin_stage(context, stage)
        except box.StageFailed as error:
            raise EnvInfraError(f"the first step cannot begin: {error}") from error


async def begin_step(item: HarborItem, context: SlotContext) -> Verdict | None:
    """Make the slot ready for a later step. A verdict: the agent has made that impossible.

    Raises:
        EnvInfraError: the step cannot begin on an untouched box either, nor after solutions.
        SandboxError: the sandbox failed.
    """
    task = item.folder
    if not context.has_kept:
        return Verdict(0.0, report={"reason": SETUP_FAILED, "detail": "the box cannot be kept"})
    await context.bring_back(boxes.agent_spec(task, context.slot.spec.profile))
    try:
        await box.make_log_folders(context)
        await box.start_services(context, task, task.environment.healthcheck)
        await box.begin_stage(context, task.stages[-1])
    except (box.StageFailed, FilesRefused) as error:
        why: Exception = error
    except SandboxError as error:
        if isinstance(error, SlotLost) or await box.answers(context):
            raise
        why = error
    else:
        return None
    detail = await _whose_doing(context, item, str(why)[:2000])
    return Verdict(0.0, report={"reason": SETUP_FAILED, "detail": detail})


async def _whose_doing(context: SlotContext, item: HarborItem, why: str) -> str:
    """The verdict's detail, if the step begins where the agent was not: its files are at fault.

    That is tried on an untouched box, and then on one where the known solutions of the earlier
    steps ran: a step may need what those before it had to make.

    Raises:
        EnvInfraError: the step begins on neither.
        SandboxError: the sandbox failed.
    """
    task = item.folder
    earlier = item.steps[: task.number] if isinstance(task, StepFolder) else ()
    await context.renew(boxes.agent_spec(task, context.slot.spec.profile))
    await box.make_ready(context, task)
    if not (untouched := await _problem(context, task.stages)):
        return why
    if not all(step.solution for step in earlier):
        raise EnvInfraError(
            f"the step cannot begin, on an untouched box neither: {why}; {untouched}; if it needs "
            "what an earlier step has to make, give that step a min_reward or a solution"
        )
    if problem := await _problem_after_solutions(context, [*earlier, task]):
        raise EnvInfraError(
            f"the step cannot begin, on an untouched box neither: {why}; nor where the solutions "
            f"of the earlier steps ran: {problem}"
        )
    return f"{why}; it begins where the solutions of the earlier steps ran"


async def _problem(context: SlotContext, stages: Sequence[StepFiles]) -> str:
    """Why stages do not begin one after the other; "" if they do."""
    try:
        for stage in stages:
            await box.begin_stage(context, stage)
    except (box.StageFailed, FilesRefused) as error:
        return str(error)[:2000]
    return ""


async def _problem_after_solutions(context: SlotContext, steps: Sequence[TaskFolder]) -> str:
    """Why the last of these steps does not begin where those before were solved; "" if it does.

    The box goes from step to step as an agent's does.
    """
    first, profile = steps[0], context.slot.spec.profile
    await context.renew(boxes.agent_spec(first, profile))
    await box.make_ready(context, first)
    problem = await _problem(context, first.stages)
    for step, following in pairwise(steps):
        if problem:
            return problem
        if step.solution is not None:
            command = await box.put_solution(context, step, step.solution)
            limit_s = step.config.agent.timeout_s or box.SETUP_TIMEOUT_S
            await context.run(command, timeout_s=limit_s)
        await context.keep()
        await context.bring_back(boxes.agent_spec(following, profile))
        await box.make_log_folders(context)
        await box.start_services(context, following, following.environment.healthcheck)
        problem = await _problem(context, following.stages[-1:])
    return problem
