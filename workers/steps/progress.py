"""The steps of one attempt: which comes next, how long it may take, and what all are worth.

Most tasks have one. Of several, none is begun that cannot be worked on, and the trajectory has a
verdict only when each step that was begun has one: a failure in any of them is one of the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envs.base import Environment, HasSteps, TakesWork, Verdict
from hermes_queue.agent.chat import ChatClient, LearnsOfSteps
from hermes_queue.agent.programs.program import Program
from hermes_queue.agent.resumption import Continuation
from hermes_queue.errors import EnvBug, SandboxRejected, SlotKilled
from hermes_queue.extensions import offers
from hermes_queue.models import Message, StopReason
from hermes_queue.sandbox.base import Capabilities
from hermes_queue.sandbox.context import SlotContext
from workers.draft import Draft
from workers.verdicts import check

if TYPE_CHECKING:
    from workers.resume.journal import TurnJournal

USED_UP: frozenset[StopReason] = frozenset(
    ("max_turns", "max_tokens", "max_cost", "context_length", "slot_killed")
)
"""Ends of an agent that could do nothing about a further instruction."""


@dataclass(slots=True)
class StepProgress:
    """See the module."""

    draft: Draft
    env: Environment[Any]
    items: Sequence[Any]
    """Of all steps, at least one."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Of the steps so far."""
    item: Any = None
    """Of the step that runs."""
    at_work: SlotContext | None = None
    """What the agent works in."""
    chat: ChatClient | None = None
    """The agent's, for all steps."""
    agent_s: float = 0.0
    """Seconds that the agent has for the step that runs."""
    _used_s: float = 0.0
    """What earlier steps have used of the agent's time."""

    def __post_init__(self) -> None:
        self.item = self.items[0]

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.items) > 1

    @property
    def is_first(self) -> bool:
        """Whether the step that runs is the first one."""
        return not self.verdicts

    def check_possible(self, program: Program | None, backend: Capabilities) -> None:
        """Refuse several steps where there can be only one.

        Raises:
            EnvBug: a program is to take them; it is given one task and ends with it.
            SandboxRejected: slots of the backend cannot go on with what an earlier step has left.
        """
        if self.several and not backend.commits:
            raise SandboxRejected(
                f"the task has {len(self.items)} steps, and this backend cannot keep a slot's "
                "files for the next one: use docker, local or modal, or leave the task out"
            )
        if program is not None and self.several:
            raise EnvBug(
                f"the task has {len(self.items)} steps, and the program {program.name} takes one "
                "instruction: run it with --agent openai, or leave the task out"
            )

    def paying(self, journal: TurnJournal | None) -> AbstractAsyncContextManager[None]:
        """Note what replies cost while several steps run; of one step, the turns themselves are.

        A step begins on what earlier ones have left, which no other worker has. So a trajectory
        that loses its worker begins anew, and the run has paid for what was sampled.
        """
        return journal.paying() if journal and self.several else nullcontext()

    async def begins(self, item: Any, context: SlotContext) -> bool:
        """Begin this step if it can; the slot is then ready for it.

        Raises:
            TrajectoryFailure: it could not be made ready; with `stage` set.
        """
        self.item = item
        if not self.is_first and not await self._prepared(item, context):
            return False
        self.agent_s = self._time()
        return True

    async def _prepared(self, item: Any, context: SlotContext) -> bool:
        draft, env = self.draft, self.env
        assert isinstance(env, HasSteps)  # noqa: S101 - others have one step
        before, messages = self.items[len(self.verdicts) - 1], draft.agent.messages
        unanswered = messages[-1].role == "user"  # its time was over before the model's reply
        if draft.agent.stop_reason in USED_UP or unanswered:
            return False
        if not env.goes_on(before, self.verdicts[-1]):
            return False
        try:
            async with draft.clock.stage("setup", limit_s=draft.job.limits.setup_timeout_s):
                context.deadline = draft.clock.deadline
                spoiled = await env.begin_step(item, context)
                if spoiled is not None:
                    spoiled = await check(spoiled, env)
        except SlotKilled:  # what earlier steps have left runs there
            if not draft.killed_in("agent", "setup", "verify"):
                raise
            draft.agent.stop_reason = "slot_killed"
            spoiled = Verdict(0.0, report={"reason": "slot_killed"})
        if spoiled is not None:
            self.verdicts.append(spoiled)
        return spoiled is None

    def _time(self) -> float:
        draft, env = self.draft, self.env
        left_s = max(0.0, draft.job.limits.agent_timeout_s - draft.kept_agent_s - self._used_s)
        own_s = env.step_limit_s(self.item) if offers(env, HasSteps) else None
        return left_s if own_s is None else min(left_s, own_s)

    def work_in(self, context: SlotContext) -> None:
        """Let the agent work in a slot until its time for this step is over."""
        context.deadline = time.monotonic() + self.draft.clock.left_s(self.agent_s)
        self.at_work = context

    def instruct(self, messages: Sequence[Message]) -> Continuation | None:
        """Give the agent the instruction of a later step; returns what it continues."""
        agent = self.draft.agent
        event = {"turn": len(agent.turns), "event": "step", "number": len(self.verdicts) + 1}
        agent.events.append(event)
        agent.messages.extend(messages)
        agent.stop_reason = None
        agent.changed()
        if isinstance(self.chat, LearnsOfSteps):
            self.chat.instructed()
        return agent.ended

    def worked(self, began: float, waited_s: float) -> None:
        """Count the agent's time in a step since `began`; `waited_s`: its waits before."""
        own_s = time.monotonic() - began - (self.draft.agent.waited_s - waited_s)
        self._used_s += max(0.0, own_s)

    async def measure(self, context: SlotContext) -> None:
        """Add the verdict of the step that runs. Raises the same as `Environment.verify`."""
        draft, env = self.draft, self.env
        context.deadline = draft.clock.deadline
        if draft.agent.stop_reason == "slot_killed" and not self.is_first:
            # On a fresh slot, without what earlier steps have left, its tests would say nothing.
            verdict = Verdict(0.0, report={"reason": "slot_killed"})
        elif draft.work is not None and offers(env, TakesWork):
            verdict = await env.measure_work(self.item, context, draft.work)
        else:
            verdict = await env.verify(self.item, context, draft.agent.shown)
        self.verdicts.append(await check(verdict, env))

    async def total(self) -> Verdict:
        """The verdict of the trajectory. Raises EnvBug if the env gives no valid one."""
        if not self.several or not offers(self.env, HasSteps):
            return self.verdicts[0]
        return await check(self.env.total(self.items, self.verdicts), self.env)
