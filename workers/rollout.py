"""One trajectory, top to bottom. This file is the map of the system: read it first.

It knows neither Celery nor Redis: `workers.trajectory` passes the job in and takes the draft.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from envs.base import Environment, load_env, load_item, steps_of, task_of
from hermes_queue.agent.context import ContextControl
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.agent.loop import BeforeTurn, run_agent
from hermes_queue.agent.programs.conceal import check_conceal
from hermes_queue.agent.programs.program import Program
from hermes_queue.agent.registry import AgentScript, make_chat, warm_up
from hermes_queue.errors import EnvBug, SlotKilled
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import WORKSPACE, SandboxBackend, Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.services import possible_on
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import Toolbox, ToolContext
from workers.bounds.limits import NO_LIMITS, StageLimits
from workers.bounds.slots import acquired, released
from workers.calls.admission import in_flight
from workers.calls.uncounted import NotCounting
from workers.draft import Draft
from workers.imports import import_named
from workers.judging.judge import Judging
from workers.program.choice import program_of, spec_of
from workers.program.run import run_command
from workers.resume.journal import TurnJournal
from workers.stages.handover import HandOver
from workers.steps.progress import StepProgress
from workers.steps.put_back import check_regradable, put_back
from workers.verdicts import checked_version, require_turn

AGENT_GRACE_S = 30.0
"""The loop ends itself at its deadline; this much later the stage ends a call that hangs."""
ALONE_AFTER = 2
"""After this many attempts that failed with their sandbox, the job shares none with other jobs."""


async def rollout(
    draft: Draft,
    row: Mapping[str, Any],
    *,
    backend: SandboxBackend,
    model: ModelSettings,
    on_measured: Callable[[], Awaitable[None]],
    before_turn: BeforeTurn | None = None,
    limiter: Limiter | None = None,
    imports: str = "*",
    bounds: StageLimits = NO_LIMITS,
    definition: Mapping[str, Any] | None = None,
    journal: TurnJournal | None = None,
    handover: HandOver | None = None,
) -> None:
    """Run one attempt and fill `draft`; a trajectory holds at most one slot.

    Args:
        draft: receives transcript, verdict and stage times, of a failed attempt too.
        row: dataset row.
        backend: provides the slot.
        model: endpoint defaults.
        on_measured: awaited with the verdict in place, before the slot is reset, and again with
            a judgement; the first time only if the verdict counts without (`draft.awaits_judge`).
        before_turn: awaited before each turn of the agent, which counts towards no deadline.
        limiter: permits each call of a model. Waiting for it counts towards no deadline either.
        imports: modules that the job may name; see `import_named`.
        bounds: limits of the stages that the job does not limit itself.
        definition: the agent's program, if the job names it by its hash.
        journal: continues the turns of an earlier attempt, and keeps those of this one.
        handover: gives the agent's work to a worker that grades it, or has that of another one.

    Raises:
        TrajectoryFailure: with `stage` set. The slot is released in any case.
    """
    job, limits = draft.job, draft.job.limits
    before_turn = draft.clock.not_counting(before_turn) if before_turn else None
    async with draft.clock.stage("load", limit_s=bounds.load_s):
        await import_named(job, allowed=imports)
        env = load_env(job.env)
        steps = StepProgress(draft, env, steps_of(env, await _load(draft, env, row)))
        program = program_of(job.agent, env, definition)
        spec = _spec(steps, program, backend)
        steps.check_possible(program, backend.capabilities)
        check_regradable(steps)
        judging = await Judging.of(draft, env, steps.items[0], model, limiter)
        await warm_up(job.agent.kind)
    async with draft.clock.stage("prepare", limit_s=bounds.prepare_s):
        await backend.prepare(spec)
        if program is not None:
            await check_conceal(program, spec, backend.read_asset)
    slot = await acquired(draft.clock, backend, job.trajectory_id, spec, bounds.acquire_s)
    draft.leased(slot)
    context = SlotContext(backend, slot, deadline=draft.clock.deadline)
    try:
        async with draft.clock.stage("setup", limit_s=limits.setup_timeout_s):
            await _set_up(draft, env, steps.item, context, journal, handover)
        async with steps.paying(journal):
            for item in steps.items:  # one, of most envs
                if not await steps.begins(item, context):
                    break
                if not draft.is_handed:
                    async with draft.clock.stage("agent", limit_s=steps.agent_s + AGENT_GRACE_S):
                        _begin_work(steps, backend, context, limiter, model)
                        with in_flight(limiter):
                            await _work(steps, program, backend, before_turn, journal)
                    if draft.agent.stop_reason == "slot_killed" and steps.is_first:
                        await _replace_slot(steps, spec, backend, context, bounds)
                if await _handed_or_measured(steps, spec, backend, context, bounds, handover):
                    return
        await judging.measured(await steps.total(), on_measured)
    finally:
        await released(backend, context.slot, bounds.release_s)
        draft.rent.end()
    await judging.judged(before_turn, on_measured)


async def _load(draft: Draft, env: Environment[Any], row: Mapping[str, Any]) -> Any:
    """Make the item of the row, and note whether anything may be trained on it."""
    # Of a row that cannot be loaded, too: the record may have the turns of earlier attempts.
    draft.evaluation = "evaluation" in env.Item.model_fields and row.get("evaluation") is True
    item = await load_item(env, row)
    draft.env_version = checked_version(env, draft.job.env)
    draft.evaluation = draft.evaluation or getattr(item, "evaluation", None) is True
    return item


def _spec(steps: StepProgress, program: Program | None, backend: SandboxBackend) -> SlotSpec:
    """What the slot must be."""
    draft = steps.draft
    wanted = spec_of(steps.env.spec(steps.item, draft.job.profile), program)
    spec = possible_on(backend, wanted)
    draft.package = spec.conceal
    return replace(spec, alone=draft.lost_sandboxes >= ALONE_AFTER)


async def _set_up(
    draft: Draft,
    env: Environment[Any],
    item: Any,
    context: SlotContext,
    journal: TurnJournal | None,
    handover: HandOver | None,
) -> None:
    """Prepare the empty workspace, or restore that of the turns or the work that is continued."""
    context.deadline = draft.clock.deadline  # later than before, if it had to wait for its place
    if draft.is_handed and handover is not None:
        return await handover.restore(env, context)
    prompt = partial(_prompt, env, item, context)
    if journal is None or not await journal.restored(context, env.tools, prompt):
        await env.setup(item, context)


async def _work(
    steps: StepProgress,
    program: Program | None,
    backend: SandboxBackend,
    before_turn: BeforeTurn | None,
    journal: TurnJournal | None,
) -> None:
    """Run the agent for one step, or put its recorded work back."""
    if await put_back(steps):
        return
    if program is None:
        await _act(steps, before_turn, journal)
    else:
        await _run_program(steps, program, backend, before_turn, journal)


async def _act(
    steps: StepProgress, before_turn: BeforeTurn | None, journal: TurnJournal | None
) -> None:
    """Run our own loop with its tools, deadline and transcript, for one step."""
    draft, context, chat = steps.draft, steps.at_work, steps.chat
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
            before_turn=before_turn,
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


async def _run_program(
    steps: StepProgress,
    program: Program,
    backend: SandboxBackend,
    before_turn: BeforeTurn | None,
    journal: TurnJournal | None,
) -> None:
    """Run a program in the slot; what its replies cost is noted meanwhile."""
    draft, context, chat = steps.draft, steps.at_work, steps.chat
    assert context is not None  # noqa: S101 - the step has begun
    assert chat is not None  # noqa: S101
    task = _moved(task_of(steps.env, steps.item), context.slot)
    work = (draft, program, task, chat, backend, context.slot)
    async with journal.paying() if journal else nullcontext():
        await run_command(*work, deadline=context.deadline, before_turn=before_turn)


async def _handed_or_measured(
    steps: StepProgress,
    spec: SlotSpec,
    backend: SandboxBackend,
    context: SlotContext,
    bounds: StageLimits,
    handover: HandOver | None,
) -> bool:
    """Hand the agent's work over (True), or measure it here.

    What an agent leaves may end the slot as well as its commands: too many files, or code that
    writes them under test. The second time it is measured like an agent whose commands did that.
    """
    draft, limit_s = steps.draft, steps.draft.job.limits.verify_timeout_s
    require_turn(draft)
    try:
        if handover is not None and await handover.give(steps, context):
            return True
        async with draft.clock.stage("verify", limit_s=limit_s):
            await steps.measure(context)
    except SlotKilled:
        if not draft.killed_in("agent", "verify"):
            raise
        draft.agent.stop_reason, draft.work = "slot_killed", None
        if steps.is_first:
            await _replace_slot(steps, spec, backend, context, bounds)
        async with draft.clock.stage("verify", limit_s=limit_s):
            await steps.measure(context)
    return False


async def _replace_slot(
    steps: StepProgress,
    spec: SlotSpec,
    backend: SandboxBackend,
    context: SlotContext,
    bounds: StageLimits,
) -> None:
    """Set up a fresh slot; the agent's changes to the lost one are lost too.

    `spec`: of the agent's. A slot that was lost while it was graded may be made of its files.
    """
    draft, lost = steps.draft, context.slot
    await released(backend, lost, bounds.release_s)
    began = time.monotonic()
    context.slot = await acquired(draft.clock, backend, lost.trajectory_id, spec, bounds.acquire_s)
    draft.clock.postpone(time.monotonic() - began)
    draft.sandbox_id = context.slot.sandbox_id
    async with draft.clock.stage("setup", limit_s=draft.job.limits.setup_timeout_s):
        context.deadline = draft.clock.deadline
        await steps.env.setup(steps.item, context)


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


def _begin_work(
    steps: StepProgress,
    backend: SandboxBackend,
    context: SlotContext,
    limiter: Limiter | None,
    model: ModelSettings,
) -> None:
    """Let the agent into the slot; its time begins."""
    steps.work_in(SlotContext(backend, context.slot, deadline=math.inf))
    steps.chat = steps.chat or make_chat(steps.draft.job.agent, _script(steps, limiter), model)


def _script(steps: StepProgress, limiter: Limiter | None) -> AgentScript:
    """Return the facts that agents may use; the oracle's are made only on request."""
    draft, env = steps.draft, steps.env
    job = draft.job

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
        limiter=NotCounting(limiter or Unlimited(), draft.clock),
    )
