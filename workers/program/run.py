"""One program: from its endpoint's start to a slot in which nothing of it runs any more.

The end of a program means an outcome of the agent, or somebody's failure. A program that never got
a reply of the model has not shown what the model can do, so nothing of it is scored. Once it got
one, its exit code means nothing: programs exit with 0 after a refused call, and the model's own
commands may decide the code.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hermes_queue.agent.budget import AttemptBudget
from hermes_queue.agent.capture.opening import open_server
from hermes_queue.agent.capture.session import AttemptSession
from hermes_queue.agent.capture.tree import ReplyTree
from hermes_queue.agent.capture.tree.canonical import arguments
from hermes_queue.agent.capture.tree.tree import History
from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.loop import BeforeTurn
from hermes_queue.agent.parameters import CommandParams, read_params
from hermes_queue.agent.programs.program import Program, Started
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import (
    DeadlineExceeded,
    ModelConfigError,
    ModelError,
    SandboxError,
    SlotKilled,
    SlotLost,
)
from hermes_queue.models import Message, ProgramRun, StopReason
from hermes_queue.sandbox.base import Listening, SandboxBackend, Slot
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.telemetry.scrubbing import MASK
from workers.draft import Draft
from workers.program.files import kept, placed
from workers.program.process import ProgramProcess

KILLS = 3
"""Tries to kill everything in the slot."""

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_KILLED = 137
GAVE_UP_S = 60.0
"""A call that has waited for so long is one that programs give up, whatever their model wants."""
_SHOWN_CHARS = 1500
"""End of the program's output in a message."""


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


def with_answer(transcript: Sequence[Message], place: str) -> list[Message]:
    """The transcript for the verifier, ending with the answer as a message of its own.

    `place` is `Program.answer`, `TOOL.ARGUMENT`. The transcript is returned as it is if there is
    none, or if the last message has no such call with a text.
    """
    tool, _, argument = place.partition(".")
    last = transcript[-1] if transcript and transcript[-1].role == "assistant" else None
    for call in reversed(last.tool_calls if last else ()):
        given = arguments(call) if call.function.name == tool else None
        text = given.get(argument) if isinstance(given, dict) else None
        if isinstance(text, str) and text:
            return [*transcript, Message(role="assistant", content=text)]
    return list(transcript)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    exit_code: int | None = 0
    """None: it did not end by itself."""
    asked: int = 1
    """Calls that reached the model's client."""
    delivered: int = 1
    """Replies that it got."""
    unanswered: bool = False
    """Whether it ended by itself while a call of its was open."""
    waited_s: float = 0.0
    """How long such a call had waited: the run was paused, or the endpoint busy or failing."""
    stop: StopReason | None = None
    """The limit that ended it."""
    failure: Exception | None = None
    """Why its calls could not be answered."""
    lost: SandboxError | None = None
    """The slot, its sandbox or the way to the endpoint failed."""
    slot_loss_ends: bool = False
    """An earlier attempt ended because its agent had killed the slot."""
    context_refused: bool = False
    """Whether its last call was too long for the model."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Refused calls by kind."""
    other_requests: Mapping[str, int] = field(default_factory=dict)
    """Requests that were no model call."""
    output: str = ""


def outcome(ended: Ended) -> StopReason:
    """The stop reason of an attempt that is scored.

    Raises:
        Exception: `ended.failure`; a `ModelError` or `ModelConfigError`, if the model's server was
            at fault, else a bug.
        ModelError: the program did not wait for its first reply, or not for a model server that
            was unavailable for long.
        SandboxError: `ended.lost`.
        DeadlineExceeded: time was up before the model's first reply.
        ModelConfigError: the program never got a reply, so it is not set up right.
    """
    if ended.failure is not None:
        raise ended.failure
    if ended.lost is not None:
        if isinstance(ended.lost, SlotKilled) and ended.slot_loss_ends and ended.delivered:
            return "slot_killed"
        raise ended.lost
    served = ended.delivered and ended.waited_s < GAVE_UP_S
    if ended.unanswered and ended.stop is None and not served:
        raise ModelError(_given_up(ended))
    if not ended.delivered:
        if ended.asked and ended.stop == "time_limit":
            raise DeadlineExceeded("time was up before the program had the model's first reply")
        raise ModelConfigError(_without_a_reply(ended))
    if ended.stop is not None:
        return ended.stop
    return "context_length" if ended.context_refused else "exited"


def _given_up(ended: Ended) -> str:
    waited = f", which had waited {ended.waited_s:.0f} s to be sent" if ended.waited_s >= 1 else ""
    return f"the program ended before the answer to its call{waited}{_shown(ended.output)}"


def _without_a_reply(ended: Ended) -> str:
    how = "was ended" if ended.exit_code is None else f"ended with exit code {ended.exit_code}"
    if ended.exit_code in (_NOT_FOUND, _NOT_EXECUTABLE):
        how += ", which means that it could not be started,"
    elif ended.exit_code == _KILLED:
        how += ", which means that it was killed, perhaps for lack of memory,"
    if ended.stop is not None:
        how += f" at its limit ({ended.stop})"
    return f"the program {how} {_what_it_asked(ended)}{_shown(ended.output)}"


def _what_it_asked(ended: Ended) -> str:
    if ended.context_refused:
        return "because its first prompt is too long for the model"
    if ended.asked:
        refused = ", ".join(f"{count} {kind}" for kind, count in ended.refused.items())
        return f"without a single reply of the model (refused calls: {refused or 'none'})"
    if ended.other_requests:
        asked = ", ".join(f"{name} ({count})" for name, count in ended.other_requests.items())
        return f"without a valid model call; it asked for {asked[:500]}"
    return "without a single model call"


def _shown(output: str) -> str:
    end = output.strip()[-_SHOWN_CHARS:]
    return f"; the end of its output: {end}" if end else "; it printed nothing"
