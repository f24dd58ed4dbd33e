"""One trajectory, top to bottom. This file is the map of the system: read it first.

It knows neither Celery nor Redis: `workers.trajectory` makes the attempt and takes its draft.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from envs.base import Environment, Verdict, load_env, load_item, steps_of, task_of
from hermes_queue.agent.context import ContextControl
from hermes_queue.agent.loop import run_agent
from hermes_queue.agent.programs.conceal import check_conceal
from hermes_queue.agent.registry import AgentScript, make_chat, warm_up
from hermes_queue.errors import EnvBug, SlotKilled
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import WORKSPACE, Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.services import possible_on
from hermes_queue.tools import Toolbox, ToolContext
from workers import hooks
from workers.attempt import Attempt
from workers.bounds.slots import acquired, released
from workers.calls.admission import in_flight
from workers.calls.uncounted import NotCounting
from workers.draft import Draft
from workers.imports import import_named
from workers.program.choice import program_of, spec_of
from workers.program.run import run_command
from workers.steps.progress import StepProgress
from workers.steps.put_back import check_regradable, put_back
from workers.verdicts import checked_version, require_turn

AGENT_GRACE_S = 30.0
"""The loop ends itself at its deadline; this much later the stage ends a call that hangs."""
ALONE_AFTER = 2
"""After this many attempts that failed with their sandbox, the job shares none with other jobs."""


async def rollout(attempt: Attempt) -> None:
    """Run one attempt and fill its draft; a trajectory holds at most one slot.

    Raises:
        TrajectoryFailure: with `stage` set. The slot is released in any case.
    """
    draft, services = attempt.draft, attempt.services
    clock, limits, bounds = draft.clock, draft.job.limits, services.bounds
    async with clock.stage("load", limit_s=bounds.load_s):
        await _load(attempt)
    async with clock.stage("prepare", limit_s=bounds.prepare_s):
        await _prepare(attempt)
    slot = await _acquire(attempt, attempt.spec)
    draft.leased(slot)
    attempt.context = SlotContext(services.backend, slot, deadline=clock.deadline)
    try:
        async with clock.stage("setup", limit_s=limits.setup_timeout_s):
            await _set_up(attempt)
        async with attempt.steps.paying(attempt.journal):
            for item in attempt.steps.items:  # one, of most envs
                if not await attempt.steps.begins(item, attempt.context):
                    break
                if not draft.is_handed:
                    await _run_agent(attempt)
                if await _handed_or_measured(attempt):
                    return
        verdict = await attempt.steps.total()
        await _measured(attempt, verdict)
    finally:
        await released(services.backend, attempt.context.slot, bounds.release_s)
        draft.rent.end()
    await _final(attempt, verdict)


async def _load(attempt: Attempt) -> None:
    """Import what the job names, make the item of its row, and refuse what cannot run here."""
    draft, job, backend = attempt.draft, attempt.draft.job, attempt.services.backend
    await import_named(job, allowed=attempt.services.imports)
    env = load_env(job.env)
    steps = StepProgress(draft, env, steps_of(env, await load_row(draft, env, attempt.row)))
    attempt.steps, attempt.program = steps, program_of(job.agent, env, attempt.definition)
    wanted = spec_of(env.spec(steps.item, job.profile), attempt.program)
    spec = possible_on(backend, wanted)
    draft.package = spec.conceal
    attempt.spec = replace(spec, alone=draft.lost_sandboxes >= ALONE_AFTER)
    steps.check_possible(attempt.program, backend.capabilities)
    check_regradable(steps)
    attempt.after = await hooks.opened(attempt)
    await warm_up(job.agent.kind)


async def load_row(draft: Draft, env: Environment[Any], row: Mapping[str, Any]) -> Any:
    """Make the item of the row, and note whether anything may be trained on it."""
    # Of a row that cannot be loaded, too: the record may have the turns of earlier attempts.
    draft.evaluation = "evaluation" in env.Item.model_fields and row.get("evaluation") is True
    item = await load_item(env, row)
    draft.env_version = checked_version(env, draft.job.env)
    draft.evaluation = draft.evaluation or getattr(item, "evaluation", None) is True
    return item


async def _prepare(attempt: Attempt) -> None:
    """Have the environment of the slot built, or wait until it is."""
    backend = attempt.services.backend
    await backend.prepare(attempt.spec)
    if attempt.program is not None:
        await check_conceal(attempt.program, attempt.spec, backend.read_asset)


async def _acquire(attempt: Attempt, spec: SlotSpec) -> Slot:
    clock, services = attempt.draft.clock, attempt.services
    name, limit_s = attempt.draft.job.trajectory_id, services.bounds.acquire_s
    return await acquired(clock, services.backend, name, spec, limit_s)


async def _set_up(attempt: Attempt) -> None:
    """Prepare the empty workspace, or restore that of the turns or the work that is continued."""
    draft, context, journal = attempt.draft, attempt.context, attempt.journal
    env, item = attempt.steps.env, attempt.steps.item
    context.deadline = draft.clock.deadline  # later than before, if it had to wait for its permit
    if draft.is_handed and attempt.handover is not None:
        return await attempt.handover.restore(env, context)
    prompt = partial(_prompt, env, item, context)
    if journal is None or not await journal.restored(context, env.tools, prompt):
        await env.setup(item, context)


async def _run_agent(attempt: Attempt) -> None:
    """The stage of the agent, for one step; a slot that it has lost is replaced by a fresh one."""
    draft, steps = attempt.draft, attempt.steps
    async with draft.clock.stage("agent", limit_s=steps.agent_s + AGENT_GRACE_S):
        _begin_work(attempt)
        with in_flight(attempt.limiter):
            await _work(attempt)
    if draft.agent.stop_reason == "slot_killed" and steps.is_first:
        await _replace_slot(attempt)


def _begin_work(attempt: Attempt) -> None:
    """Let the agent into the slot; its time begins."""
    steps, services = attempt.steps, attempt.services
    steps.work_in(SlotContext(services.backend, attempt.context.slot, deadline=math.inf))
    agent = attempt.draft.job.agent
    steps.chat = steps.chat or make_chat(agent, _script(attempt), services.model)


async def _work(attempt: Attempt) -> None:
    """Run the agent for one step, or put its recorded work back."""
    if await put_back(attempt.steps):
        return
    if attempt.program is None:
        await _act(attempt)
    else:
        await _run_program(attempt)


async def _act(attempt: Attempt) -> None:
    """Run our own loop with its tools, deadline and transcript, for one step."""
    draft, steps, journal = attempt.draft, attempt.steps, attempt.journal
    context, chat = steps.at_work, steps.chat
    assert context is not None  # noqa: S101 - the step has begun
    assert chat is not None  # noqa: S101
    job, limits = draft.job, draft.job.limits
    prompt = _prompt(steps.env, steps.item, context)
    toolbox = Toolbox(
        steps.env.tools, ToolContext(context, limits.tool_timeout_s, limits.observation_bytes)
    )
    draft.tools = tuple(toolbox.schemas)
    began, waited_s = time.monotonic(), draft.agent.waited_s
    continues = journal.continuation if journal else None
    recorder = None
    if not steps.is_first:
        continues = steps.instruct(prompt)
    elif journal and not steps.several:
        recorder = journal.recorder(chat, toolbox, prompt, context)
    try:
        await run_agent(
            chat,
            toolbox,
            prompt,
            limits=limits,
            sampling=job.agent.sampling,
            deadline=context.deadline,
            cost_usd=draft.cost_usd,
            before_turn=attempt.before_turn,
            context=ContextControl(job.agent.params),
            into=draft.agent,
            slot_loss_ends=draft.slot_killed_before,
            checkpoints=recorder,
            continues=continues,
        )
    finally:
        steps.worked(began, waited_s)
        if recorder is not None:
            await recorder.stop()


async def _run_program(attempt: Attempt) -> None:
    """Run a program in the slot; what its replies cost is noted meanwhile."""
    steps, journal = attempt.steps, attempt.journal
    assert attempt.program is not None  # noqa: S101 - the agent is one
    assert steps.chat is not None  # noqa: S101 - the step has begun
    assert steps.at_work is not None  # noqa: S101
    backend, slot = attempt.services.backend, steps.at_work.slot
    task = _moved(task_of(steps.env, steps.item), slot)
    work = (attempt.draft, attempt.program, task, steps.chat, backend, slot)
    async with journal.paying() if journal else nullcontext():
        deadline = steps.at_work.deadline
        await run_command(*work, deadline=deadline, before_turn=attempt.before_turn)


async def _handed_or_measured(attempt: Attempt) -> bool:
    """Hand the agent's work over (True), or measure it here.

    What an agent leaves may end the slot as well as its commands: too many files, or code that
    writes them under test. The second time it is measured like an agent whose commands did that.
    """
    draft, steps = attempt.draft, attempt.steps
    limit_s = draft.job.limits.verify_timeout_s
    require_turn(draft)
    try:
        if attempt.handover is not None and await attempt.handover.give(steps, attempt.context):
            return True
        async with draft.clock.stage("verify", limit_s=limit_s):
            await steps.measure(attempt.context)
    except SlotKilled:
        if not draft.killed_in("agent", "verify"):
            raise
        draft.agent.stop_reason, draft.work = "slot_killed", None
        if steps.is_first:
            await _replace_slot(attempt)
        async with draft.clock.stage("verify", limit_s=limit_s):
            await steps.measure(attempt.context)
    return False


async def _replace_slot(attempt: Attempt) -> None:
    """Set up a fresh slot; the agent's changes to the lost one are lost too.

    It is made as the agent's was: a slot that was lost while it was graded may be made of its
    files.
    """
    draft, context, services = attempt.draft, attempt.context, attempt.services
    await released(services.backend, context.slot, services.bounds.release_s)
    began = time.monotonic()
    context.slot = await _acquire(attempt, attempt.spec)
    draft.clock.postpone(time.monotonic() - began)
    draft.sandbox_id = context.slot.sandbox_id
    async with draft.clock.stage("setup", limit_s=draft.job.limits.setup_timeout_s):
        context.deadline = draft.clock.deadline
        await attempt.steps.env.setup(attempt.steps.item, context)


async def _measured(attempt: Attempt, verdict: Verdict) -> None:
    """Keep the verdict, or what counts of it until the hooks have answered."""
    draft = attempt.draft
    provisional: Verdict | None = verdict
    for hook in attempt.after:
        provisional = hook.provisional(provisional) if provisional else None
    draft.verdict, draft.is_provisional = provisional, bool(attempt.after)
    if provisional is not None:
        await attempt.on_measured()


async def _final(attempt: Attempt, verdict: Verdict) -> None:
    """Have the hooks make the verdict final, with no slot held."""
    if not attempt.after:
        return
    for hook in attempt.after:
        verdict = await hook.final(verdict)
    attempt.draft.verdict, attempt.draft.is_provisional = verdict, False
    await attempt.on_measured()


def _prompt(env: Environment[Any], item: Any, context: SlotContext) -> Sequence[Message]:
    messages = env.prompt(item)
    if isinstance(messages, str) or not all(isinstance(each, Message) for each in messages):
        kind = "str" if isinstance(messages, str) else "other elements"
        raise EnvBug(f"prompt() must return a list of Message, not {kind}")
    return _with_workspace(messages, context.slot)


def _with_workspace(messages: Sequence[Message], slot: Slot) -> Sequence[Message]:
    """Return the prompt with the workspace's real path, if the backend cannot mount /workspace."""
    if slot.workspace == WORKSPACE:
        return messages
    moved = [_moved(message.content or "", slot) for message in messages]
    return [
        message.model_copy(update={"content": text or message.content})
        for message, text in zip(messages, moved, strict=True)
    ]


def _moved(text: str, slot: Slot) -> str:
    if slot.workspace == WORKSPACE or slot.spec.image is not None:  # an image has its own paths
        return text
    return re.sub(re.escape(WORKSPACE) + r"(?![\w-])", lambda _: slot.workspace, text)


def _script(attempt: Attempt) -> AgentScript:
    """Return the facts that agents may use; the oracle's are made only on request."""
    draft, steps = attempt.draft, attempt.steps
    env, job = steps.env, draft.job

    async def oracle() -> tuple[Sequence[ToolCall], str]:
        assert steps.at_work is not None  # noqa: S101 - an agent asks at work
        return await env.oracle(steps.item, steps.at_work), env.oracle_answer(steps.item)

    return AgentScript(
        oracle=oracle,
        tamper=env.tamper(steps.item) if job.agent.kind == "tamper" else {},
        sample_index=job.sample_index,
        instance_id=job.instance_id,
        trajectory_id=job.trajectory_id,
        group_id=job.group_id,
        policy_version=job.policy_version,
        endpoint_failures=draft.endpoint_failures,
        limiter=NotCounting(attempt.limiter, draft.clock),
    )
