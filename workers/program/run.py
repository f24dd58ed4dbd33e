"""One program: from its endpoint's start to a slot in which nothing of it runs any more."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hermes_queue.agent.budget import AttemptBudget
from hermes_queue.agent.capture.opening import open_server
from hermes_queue.agent.capture.session import AttemptSession
from hermes_queue.agent.capture.tree import ReplyTree
from hermes_queue.agent.capture.tree.tree import History
from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.loop import BeforeTurn
from hermes_queue.agent.parameters import CommandParams, read_params
from hermes_queue.agent.programs.program import Program, Started
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.models import ProgramRun
from hermes_queue.sandbox.base import Listening, SandboxBackend, Slot
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.telemetry.scrubbing import MASK
from workers.draft import Draft
from workers.program.answer import with_answer
from workers.program.files import kept, placed
from workers.program.outcome import Ended, outcome
from workers.program.process import ProgramProcess

KILLS = 3
"""Tries to kill everything in the slot."""


async def run_command(
    draft: Draft,
    program: Program,
    task: str,
    chat: ChatClient,
    backend: SandboxBackend,
    slot: Slot,
    *,
    deadline: float,
    before_turn: BeforeTurn | None,
) -> None:
    """Run `program` in the slot until it ends or has to, and fill `draft.agent`.

    Args:
        draft: receives the transcript as it grows, also of an attempt that fails.
        program: with its asset in the slot.
        task: text that the program is given.
        chat: answers its model calls.
        backend: that of the slot.
        slot: set up.
        deadline: end of the agent's time on the monotonic clock; waits for the model move it.
        before_turn: see `run_agent`.

    Raises:
        Exception: see `outcome`; the attempt is not scored.
    """
    job, result = draft.job, draft.agent
    params = read_params(CommandParams, job.agent.params, "agent command")
    budget = AttemptBudget(job.limits, job.agent.sampling, deadline, draft.cost_usd)
    by_mode: dict[str, History] = {"tokens": "sampled", "messages": "agent"}
    tree = ReplyTree(result, task, history=params.history or by_mode[params.mode])
    session = AttemptSession(
        chat, tree, budget, result, model=job.agent.model or "", before_turn=before_turn
    )
    context = SlotContext(backend, slot, deadline=math.inf)
    try:
        async with _endpoint(backend, slot, session, program) as listening:
            started, command = await placed(
                program,
                context,
                task=task,
                model=session.model,
                url=f"http://{listening.host}:{listening.port}",
                key=session.key,
                max_turns=job.limits.max_turns,
            )
            process = ProgramProcess(backend, slot)
            await process.run(command, session, budget, listening)
            waited_s = draft.clock.waiting_s if process.left_a_call else 0.0
        files = await _left_behind(started, context, process)
        result.program = _facts(program, started, session, process, files)
    finally:
        result.messages[:] = tree.main_path()
        result.transcript = with_answer(tree.main_path(sampled=True), program.answer)
        draft.tools = tree.main_tools() or draft.tools
        result.changed()
    ended = _ended(session, process, waited_s=waited_s, slot_killed=draft.slot_killed_before)
    result.stop_reason = outcome(ended)
    stop = {"turn": len(result.turns), "event": "stop", "reason": result.stop_reason}
    result.events.append(stop)
    result.changed()


@asynccontextmanager
async def _endpoint(
    backend: SandboxBackend, slot: Slot, session: AttemptSession, program: Program
) -> AsyncIterator[Listening]:
    """The endpoint of `session` in the slot. Afterwards it is gone and the session sealed."""
    server = await open_server(session, refusal_status=program.refusal_status)
    listening: Listening | None = None

    async def close() -> None:
        session.seal()
        await server.close()
        if listening is not None:
            await listening.close()
        await session.close()

    try:
        listening = await backend.listen(slot, server.factory)
        yield listening
    finally:
        await unbroken(close())


async def _left_behind(
    started: Started, context: SlotContext, process: ProgramProcess
) -> dict[str, str]:
    """Kill everything that still runs in the slot, and read the files to keep."""
    if isinstance(process.lost, SlotLost):
        return {}
    try:
        await _kill_all(context)
        return await kept(started.keep, context)
    except SandboxError as error:
        process.lost = process.lost or error
        return {}


async def _kill_all(context: SlotContext) -> None:
    """Kill all processes in the slot. Raises SandboxError if it does not answer."""
    for left in reversed(range(KILLS)):
        try:
            return await context.kill_processes()
        except SlotLost:
            raise
        except SandboxError:
            if not left:
                raise


def _facts(
    program: Program,
    started: Started,
    session: AttemptSession,
    process: ProgramProcess,
    files: dict[str, str],
) -> ProgramRun:
    """The record of the run, without the key."""

    def clean(text: str | bytes) -> str:
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        return text.replace(session.key, MASK)

    done = process.result
    return ProgramRun(
        name=program.name,
        version=program.version,
        argv=(clean(started.command),),
        exit_code=done.exit_code if done and process.ended_by_itself else None,
        seconds=round(done.duration_s, 3) if done else 0.0,
        cpu_s=done.cpu_s if done else None,
        stdout=clean(done.stdout) if done else "",
        stderr=clean(done.stderr) if done else "",
        kept={clean(path): clean(text) for path, text in files.items()},
        other_requests={clean(k): n for k, n in session.account.other_requests.items()},
        refused=dict(session.account.refused),
    )


def _ended(
    session: AttemptSession, process: ProgramProcess, *, waited_s: float, slot_killed: bool
) -> Ended:
    done = process.result
    output = (done.output if done else "").replace(session.key, MASK)
    return Ended(
        exit_code=done.exit_code if done and process.ended_by_itself else None,
        asked=session.asked,
        delivered=session.delivered_replies,
        unanswered=process.left_a_call,
        waited_s=waited_s,
        stop=session.stop_reason,
        failure=session.failure,
        lost=process.lost,
        slot_loss_ends=slot_killed,
        context_refused=session.context_was_refused,
        refused=session.account.refused,
        other_requests=session.account.other_requests,
        output=output,
    )
