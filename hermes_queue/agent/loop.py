"""Model call, tool calls, observations, until a stop reason applies.

Deterministic for given inputs. A mistake of the agent is an observation or a stop reason. Only a
failing sandbox or endpoint raises; the caller's `AgentResult` then holds everything up to that
point.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from hermes_queue.agent.budget import STUCK_TURNS, AttemptBudget, Cost
from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.context import ContextControl
from hermes_queue.agent.fault import CallAtFault, answered, answers_again
from hermes_queue.agent.resumption import (
    CallsOfTurn,
    Checkpoints,
    Continuation,
    LoopState,
    Resumable,
)
from hermes_queue.agent.tokens.replies import Replies, ask
from hermes_queue.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    ModelError,
    SlotKilled,
    TrajectoryFailure,
)
from hermes_queue.extensions import offers
from hermes_queue.models import (
    Limits,
    Message,
    StopReason,
    ToolCall,
    ToolCallCounts,
    Turn,
    Usage,
)
from hermes_queue.telemetry.otel.timeline import Timeline
from hermes_queue.tools.toolbox import Toolbox, ToolOutcome
from hermes_queue.wire.branches import Branch, Node
from hermes_queue.wire.parameters import COUNT_MAX
from hermes_queue.wire.program import ProgramRun

MAX_CALLS_PER_TURN = 32
"""Further calls in the same turn are answered but not run."""

BeforeTurn = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class AgentResult:
    """Everything the agent has done so far; complete once `stop_reason` is set."""

    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    """Context rewrites and decisions in order: {"turn": index, "event": kind, ...}."""
    nodes: list[Node] = field(default_factory=list)
    """All messages of a program's conversations, of which `messages` is the main one."""
    branches: list[Branch] = field(default_factory=list)
    transcript: list[Message] | None = None
    """What the verifier is shown of a program: `messages` without replies that it wrote itself."""
    program: ProgramRun | None = None
    stop_reason: StopReason | None = None
    attempted: int = 0
    schema_valid: int = 0
    ok: int = 0
    error: int = 0
    waited_s: float = 0.0
    """Seconds in `before_turn` (e.g. while the run was paused) and in `Reply.waited_s`. They are
    not part of the agent's time."""
    ended: Continuation | None = field(default=None, repr=False, compare=False)
    """What a further instruction continues, once a loop has stopped."""
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    """Notes the calls of an attempt that is traced."""
    watch: Callable[[AgentResult], None] | None = field(default=None, repr=False, compare=False)
    """Called on the event loop whenever something was added; it returns at once and never raises.
    The lists only grow: a watcher keeps the number of entries that it has seen of each."""

    def changed(self) -> None:
        """Tell the watcher that something was added. For whoever fills this result."""
        if self.watch is not None:
            self.watch(self)

    @property
    def shown(self) -> list[Message]:
        """The transcript for the verifier."""
        return self.messages if self.transcript is None else self.transcript

    @property
    def tool_calls(self) -> ToolCallCounts:
        """The counters in wire form."""
        names = ToolCallCounts.model_fields
        return ToolCallCounts(**{name: getattr(self, name) for name in names})

    @property
    def usage(self) -> Usage:
        """Tokens of all turns."""
        return total(turn.usage for turn in self.turns)


def total(usages: Iterable[Usage]) -> Usage:
    """The sum. Negative counts are ignored, since budgets depend on it."""
    prompt = completion = cached = 0
    for usage in usages:
        prompt += max(0, usage.prompt_tokens)
        completion += max(0, usage.completion_tokens)
        cached += max(0, usage.cached_tokens)
    return Usage(
        prompt_tokens=min(prompt, COUNT_MAX),
        completion_tokens=min(completion, COUNT_MAX),
        cached_tokens=min(cached, COUNT_MAX),
    )


async def run_agent(
    chat: ChatClient,
    toolbox: Toolbox,
    messages: Sequence[Message],
    *,
    limits: Limits,
    sampling: Mapping[str, Any],
    deadline: float,
    cost_usd: Cost | None = None,
    before_turn: BeforeTurn | None = None,
    context: ContextControl | None = None,
    into: AgentResult | None = None,
    slot_loss_ends: bool = False,
    checkpoints: Checkpoints | None = None,
    continues: Continuation | None = None,
) -> AgentResult:
    """Run the agent from `messages` until it stops; `stop_reason` is set on return.

    `deadline`, on the `time.monotonic()` clock, ends the agent stage: the outcome `time_limit`.
    `cost_usd` prices a usage in US dollars, None if the price is unknown. `before_turn` is awaited
    before each model call; it may wait, which moves the deadline, or raise. `context` rewrites the
    conversation before it is sent. `into` is filled while the agent runs, so that it survives an
    exception. With `slot_loss_ends`, a tool call that kills its own slot stops the agent with
    `slot_killed` instead of raising. `checkpoints` learns of each turn. `continues` the turns that
    are in `into` already, with `messages` before them; `context` is then that of the continuation.
    For a further instruction it is `AgentResult.ended`, and `into` has the new messages already.

    Raises:
        SandboxError: a tool could not reach the sandbox.
        ModelError, ModelConfigError: the endpoint failed, or the cost is limited but unknown.
        ModelError: time was up before the first reply, so that nothing of the agent was measured.
    """
    result = into if into is not None else AgentResult()
    if continues is None:
        result.messages.extend(messages)
        context = context or ContextControl()
        context.begin(messages, toolbox.schemas)
    else:
        context = continues.context
    result.changed()
    budget = AttemptBudget(limits, sampling, deadline, cost_usd)
    loop = _Loop(chat, toolbox, result, budget, context, Replies(result))
    loop.slot_loss_ends, loop.checkpoints = slot_loss_ends, checkpoints
    if continues is not None:
        loop.continue_from(continues)
    while result.stop_reason is None:
        if before_turn is not None:
            await loop.wait(before_turn)
        result.stop_reason = loop.exhausted() or await loop.turn()
        if checkpoints is not None and result.stop_reason is None:
            checkpoints.stepped(loop.state())
    result.events.append({"turn": len(result.turns), "event": "stop", "reason": result.stop_reason})
    result.ended = loop.ended()
    result.changed()
    return result


@dataclass(slots=True)
class _Loop:
    chat: ChatClient
    toolbox: Toolbox
    result: AgentResult
    budget: AttemptBudget
    context: ContextControl
    replies: Replies
    slot_loss_ends: bool = False
    context_caps: bool = False
    """Whether the context, rather than a budget of the job, limited the last reply."""
    sent: Sequence[Message] = ()
    """The conversation as it was sent for the last turn, and its reply."""
    format_errors: int = 0
    repeats: int = 0
    last_step: CallsOfTurn = field(default_factory=list)
    checkpoints: Checkpoints | None = None

    def state(self) -> LoopState:
        """What is needed to continue after the last turn."""
        ended_by_token = self.replies.ended_by_token(-1)
        chat = self.chat.state() if offers(self.chat, Resumable) else {}
        return LoopState(self.format_errors, self.repeats, ended_by_token, chat)

    def ended(self) -> Continuation:
        """What the same client continues after another message."""
        state = LoopState(ended_by_token=self.replies.ended_by_token(-1))
        return Continuation(state, self.context, self.sent, [], same_client=True)

    def continue_from(self, kept: Continuation) -> None:
        """Continue after the turns in `result`."""
        self.replies = Replies(self.result, ended_by_token=kept.state.ended_by_token)
        self.sent, self.last_step = kept.sent, kept.last_step
        self.format_errors, self.repeats = kept.state.format_errors, kept.state.repeats
        if offers(self.chat, Resumable) and not kept.same_client:
            self.chat.resume(kept.state.chat, len(self.result.turns))

    async def wait(self, before_turn: BeforeTurn) -> None:
        """Await `before_turn`; its time does not count as the agent's."""
        started = time.monotonic()
        try:
            await before_turn()
        finally:
            self._postpone(time.monotonic() - started)

    def _postpone(self, waited_s: float) -> None:
        self.budget.deadline += waited_s
        self.toolbox.postpone(waited_s)
        self.result.waited_s += waited_s

    def exhausted(self) -> StopReason | None:
        """The limit that allows no further turn; None if there is none."""
        return self.budget.exhausted(len(self.result.turns), self.result)

    async def turn(self) -> StopReason | None:
        """Sample one reply and run its tool calls; None = continue."""
        try:
            reply = await self._reply()
        except ContextLengthExceeded as error:
            self._event("context_length", message=str(error)[:500])
            return "context_length"
        except CallAtFault as error:
            self._event("call_at_fault", message=str(error)[:500])
            return "format_errors"
        except TimeoutError as error:
            if not self.result.turns:
                raise ModelError("the agent's time ended before the model's first reply") from error
            return "time_limit"
        self._postpone(reply.waited_s)
        self.result.messages.append(reply.message)
        self.replies.add(reply)
        self.result.changed()
        self.context.observed(reply.turn.usage, reply.message)
        if not reply.message.tool_calls:
            if reply.turn.finish_reason != "length":
                return "no_tool_call"
            bound = self.context_caps or reply.context_bound
            return "context_length" if bound else "max_tokens"
        if self.checkpoints is not None:
            await self.wait(self.checkpoints.settled)
        return await self._run_calls(reply.message.tool_calls)

    async def _reply(self) -> Reply:
        """Call the model; if the context overflows, again with a shorter view while possible."""
        while True:
            view, rewrite = self.context.view(self.result.messages)
            if rewrite:
                self._event(**rewrite)
            try:
                if self.context.left() == 0:
                    raise ContextLengthExceeded("the prompt would leave no room for a reply")
                return await self._sampled(view)
            except TrajectoryFailure as failure:
                for event in failure.events:
                    self._event(**event)
                if not isinstance(failure, ContextLengthExceeded):
                    raise
                rewrite = self.context.refused(self.result.messages)
                if rewrite is None:
                    raise
                self._event(**rewrite)

    async def _sampled(self, view: Sequence[Message]) -> Reply:
        reply = await answered(lambda: self._asked(view), self._still_works)
        self.sent = (*view, reply.message)
        return reply

    async def _asked(self, view: Sequence[Message]) -> Reply:
        anchor = self.replies.anchor(-1, self.sent)
        tools, deadline = self.toolbox.schemas, self.budget.deadline
        noting = self.result.timeline
        began = time.monotonic()
        try:
            return await ask(
                self.chat, view, tools, self._sampling(), deadline, anchor=anchor, timeline=noting
            )
        except TrajectoryFailure:
            self._postpone(time.monotonic() - began)
            raise

    async def _still_works(self, error: TrajectoryFailure) -> bool:
        """Whether the server answers the first call once more, which takes none of our time."""
        if not self.result.turns:
            return False
        first = list(takewhile(lambda each: each.role != "assistant", self.result.messages))
        began = time.monotonic()
        works = await answers_again(self.chat, first, self.toolbox.schemas, self.budget)
        self._postpone(time.monotonic() - began)
        for event in error.events if works else ():
            self._event(**event)
        return works

    async def _run_calls(self, calls: Sequence[ToolCall]) -> StopReason | None:
        step: CallsOfTurn = []
        any_valid = False
        for done, call in enumerate(calls):
            self.result.attempted += 1
            if done >= MAX_CALLS_PER_TURN:
                self._answer(call, f"Not run: at most {MAX_CALLS_PER_TURN} calls per turn.")
                continue
            if time.monotonic() >= self.budget.deadline:
                return self._cut_off(calls[done:], "time_limit")
            try:
                outcome = await self._call_tool(call)
            except DeadlineExceeded:
                return self._cut_off(calls[done:], "time_limit")
            except SlotKilled:
                if not self.slot_loss_ends:
                    raise
                self._answer(call, "The sandbox ended, and with it what was in it.")
                return self._cut_off(calls[done + 1 :], "slot_killed")
            any_valid |= outcome.schema_valid
            self.result.schema_valid += outcome.schema_valid
            self.result.ok += outcome.schema_valid and outcome.ok
            self.result.error += outcome.schema_valid and not outcome.ok
            self._answer(call, outcome.text)
            step.append((call.function.name, call.function.arguments, outcome.text))
            if outcome.submits:
                return self._cut_off(calls[done + 1 :], "submitted")
        return self._format_errors(any_valid) or self._stuck(step)

    async def _call_tool(self, call: ToolCall) -> ToolOutcome:
        if self.result.timeline is None:
            return await self.toolbox.call(call)
        with self.result.timeline.tool_call(call) as noted:
            outcome = await self.toolbox.call(call)
            noted.answered(outcome)
        return outcome

    def _cut_off(self, calls: Sequence[ToolCall], reason: StopReason) -> StopReason:
        """Answer the calls that will not run: a history with unanswered calls is invalid."""
        for call in calls:
            self._answer(call, f"Not run: {reason}.")
        return reason

    def _format_errors(self, any_valid: bool) -> StopReason | None:
        self.format_errors = 0 if any_valid else self.format_errors + 1
        return (
            "format_errors" if self.format_errors >= self.budget.limits.max_format_errors else None
        )

    def _stuck(self, step: CallsOfTurn) -> StopReason | None:
        self.repeats = self.repeats + 1 if step == self.last_step else 1
        self.last_step = step
        return "stuck" if self.repeats >= STUCK_TURNS else None

    def _sampling(self) -> Mapping[str, Any]:
        """The job's sampling, with its token cap lowered to the remaining budget and context."""
        left, room = self.budget.tokens_left(self.result), self.context.left()
        if left is None and room is None:
            self.context_caps = False
            return self.budget.sampling
        cap = self.budget.reply_cap(left)
        self.context_caps = room is not None and (cap is None or room < cap)
        return self.budget.capped(cap, room)

    def _answer(self, call: ToolCall, text: str) -> None:
        self.result.messages.append(Message(role="tool", content=text, tool_call_id=call.id))
        self.result.changed()

    def _event(self, event: str, **details: Any) -> None:
        self.result.events.append({"turn": len(self.result.turns), "event": event, **details})
