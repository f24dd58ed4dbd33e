"""One attempt's side of a hand-over: its agent ends in one worker, another one grades what it did.

What is handed over is the transcript with all that is known of the trajectory, and the work: what
the env takes out of the slot, else a copy of the slot's files. If that cannot be had, or nobody is
there to grade it, the worker of the agent grades it, as without hand-overs.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from envs.base import Environment, TakesWork
from hermes_queue.agent.kinds.recorded import recorded_params
from hermes_queue.bodies.handed import HandedWork, decode_handed, encode_handed
from hermes_queue.errors import EnvBug, NoSnapshot, RedisFull, SandboxError, WorkLost
from hermes_queue.extensions import offers
from hermes_queue.ledger import Begun, Claim, Spent
from hermes_queue.ledger.answers import booked_facts
from hermes_queue.ledger.fleet.handovers import (
    HandoverVerdict,
    hand_over,
    read_handover,
    snapshot_needs,
)
from hermes_queue.models import Message
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.snapshots import KeepsSnapshots
from hermes_queue.telemetry.scrubbing import Scrubber, scrubber
from hermes_queue.wire.branches import Node
from workers.bounds.copies import copied, dropped, restored
from workers.draft import Draft
from workers.record import record_of
from workers.runtime import Runtime
from workers.steps.progress import StepProgress
from workers.upkeep import metering

logger = logging.getLogger(__name__)


class HandOver:
    """Gives the work of this attempt's agent to another worker, or takes that of another one."""

    def __init__(self, runtime: Runtime, claim: Claim, begun: Begun, draft: Draft) -> None:
        self._runtime = runtime
        self._claim = claim
        self._begun = begun
        self._draft = draft
        self._given: HandedWork | None = None
        self.is_done = False
        """Whether another worker has the trajectory now."""

    # --- the worker that grades -------------------------------------------------------------

    async def take(self) -> WorkLost | None:
        """Fill the draft with what was handed over; the failure if it is gone, or damaged.

        Raises:
            SchemaTooNew: a newer worker has to grade it.
        """
        runtime, name, draft = self._runtime, self._claim.trajectory_id, self._draft
        draft.is_handed = True
        most = runtime.stages.handover_max_bytes
        read = partial(read_handover, runtime.ledger, name, most_bytes=max(most, 64 << 20))
        try:
            body = await runtime.until_redis_answers(read)
            if body is None:
                raise ValueError("it is in Redis no longer")
            given = await runtime.in_thread(decode_handed, body)
            if given.handover != self._begun.handed or given.record.trajectory_id != name:
                raise ValueError("it is another one")
        except ValueError as error:
            return self._lost(str(error))
        self._given = given
        _fill(draft, given, runtime.host)
        return None

    async def restore(self, env: Environment[Any], context: SlotContext) -> None:
        """Bring a fresh slot to where the agent has left its own.

        That takes as long as a set-up may take, at most, and nothing of the total deadline: where
        one worker does it all, there is nothing to restore.

        Raises:
            WorkLost: that is not possible, or another version of the env has begun the trajectory.
            SandboxError: the sandbox could not answer.
        """
        given, backend, draft = self._given, self._runtime.backend, self._draft
        assert given is not None  # noqa: S101 - it was taken
        if given.env_version != draft.env_version:
            ours = f"version {draft.env_version!r} of the env {env.name}"
            raise self._lost(f"it is of version {given.env_version!r}, this worker has {ours}")
        if given.work is not None:
            if not offers(env, TakesWork):
                raise self._lost(f"the env {env.name} of this worker measures no work")
            return
        if not offers(backend, KeepsSnapshots) or not backend.capabilities.snapshot:
            raise self._lost("this backend keeps no snapshots")
        restore = backend.restore(context.slot, given.snapshot_id)
        limit_s = draft.job.limits.setup_timeout_s
        try:
            await draft.clock.not_counting(partial(restored, restore, limit_s=limit_s))()
        except NoSnapshot as error:
            # Once more, by whoever is next: the agent's work is worth another attempt.
            if error.may_pass and all(each.failure.stage != "setup" for each in draft.earlier):
                raise SandboxError(str(error)) from error
            raise self._lost(str(error)) from error
        context.deadline = draft.clock.deadline  # later than before, by that time

    def _lost(self, why: str) -> WorkLost:
        metering.handed(self._runtime.meter, self._draft.job.env, "lost")
        return WorkLost(f"the work that was handed over cannot be graded: {why}")

    async def forget(self) -> None:
        """Delete the copy of the files once the trajectory needs it no longer. Never raises."""
        backend, given = self._runtime.backend, self._given
        if given is None or not given.snapshot_id or not offers(backend, KeepsSnapshots):
            return
        name = self._claim.trajectory_id
        try:
            find = partial(snapshot_needs, self._runtime.ledger, [name])
            needed = (await self._runtime.in_thread(find))[name]
        except Exception as error:  # noqa: BLE001 - `UnneededSnapshots` or the provider deletes it
            logger.info("a snapshot stays: %s", error, extra={"action": "snapshot_left"})
            return
        if needed.snapshot_id != given.snapshot_id:
            await dropped(backend, given.snapshot_id)

    # --- the worker of the agent ------------------------------------------------------------

    async def give(self, steps: StepProgress, context: SlotContext) -> bool:
        """Hand the work over; False if this worker has to grade it.

        Raises:
            TrajectoryFailure: the work could not be taken out of the slot; as `verify` would.
        """
        if self._runtime.worker.stages != "agent" or not _may_be_given(steps):
            return False
        began = time.monotonic()
        snapshot_id = await self._taken(steps, context)
        verdict = None if snapshot_id is None else await self._send(snapshot_id)
        self.is_done = verdict == "ok"
        if self.is_done:
            self._runtime.settle(self._claim)
            self._runtime.slots.handed(self._draft)
        elif snapshot_id:
            await self._drop(snapshot_id)
        outcome = "handed_over" if self.is_done else verdict or "not_possible"
        metering.handed(self._runtime.meter, self._draft.job.env, outcome)
        extra = {"action": "handed_over"} if self.is_done else {"action": "handover_kept"}
        took_s, name = time.monotonic() - began, self._claim.trajectory_id
        logger.info("%s: %s in %.2f s", name, outcome, took_s, extra=extra)
        return self.is_done

    async def _taken(self, steps: StepProgress, context: SlotContext) -> str | None:
        """Take the work out of the slot, or copy its files: the id of the copy, "" = there is none.

        None if neither is possible.
        """
        draft, env = self._draft, steps.env
        if not offers(env, TakesWork):
            return await self._copied(context)
        context.deadline = draft.clock.deadline
        async with draft.clock.timed("verify", draft.job.limits.verify_timeout_s):
            work = await env.take_work(steps.item, context, draft.agent.shown)
            if not isinstance(work, bytes):
                raise EnvBug(f"env {env.name}: take_work() must return bytes, not {type(work)}")
        draft.work = work
        return ""

    async def _copied(self, context: SlotContext) -> str | None:
        """A copy of the slot's files; None if there can be none.

        It takes as long as restoring it may take, at most.
        """
        backend, draft, found = self._runtime.backend, self._draft, list[str]()
        if not offers(backend, KeepsSnapshots) or not backend.capabilities.snapshot:
            return None
        limit_s, keep_s = draft.job.limits.setup_timeout_s, self._runtime.stages.handover_ttl_s

        async def copy() -> None:
            copy_of = backend.snapshot(context.slot, keep_s=keep_s)
            found.append((await copied(copy_of, limit_s=limit_s)).snapshot_id)

        try:
            await draft.clock.not_counting(copy)()
        except Exception as error:  # noqa: BLE001 - also of a foreign backend: nothing is lost yet
            logger.info("it is graded here: %s", error, extra={"action": "handover_kept"})
            return None
        return found[0]

    async def _send(self, snapshot_id: str) -> HandoverVerdict | None:
        """Redis' answer; None if the work cannot be sent."""
        runtime, draft, handover = self._runtime, self._draft, secrets.token_hex(16)
        is_remote = runtime.backend.capabilities.remote
        try:
            body = await runtime.in_thread(self._body, handover, snapshot_id)
        except (ValueError, OverflowError) as error:
            logger.info("it is graded here: %s", error, extra={"action": "handover_kept"})
            return None
        call = hand_over(
            self._claim,
            body,
            owner=runtime.owner,
            lane=draft.job.lane,
            handover=handover,
            snapshot_id=snapshot_id,
            only_host=runtime.host if snapshot_id and not is_remote else "",
            most=runtime.stages.handover_most,
            ttl_s=runtime.stages.handover_ttl_s,
            used_s=draft.clock.used_s,
            spent=draft.spent,
        )
        try:
            return await runtime.answered(call, or_full=True)
        except RedisFull as error:  # its copy may be gone by the time that there is room
            logger.info("it is graded here: %s", error, extra={"action": "handover_kept"})
            return None

    def _body(self, handover: str, snapshot_id: str) -> bytes:
        """The encoded work. Raises ValueError or OverflowError: it cannot be handed over."""
        runtime, draft = self._runtime, self._draft
        record = record_of(draft, owner=runtime.owner, host=runtime.host, final=False)
        transcript, clean = draft.agent.transcript, scrubber()
        found = any(map(clean.finds, (record, *(transcript or ()))))
        if found or _has_secret(clean, draft.work):  # without it, it would not be graded as it is
            raise ValueError("a secret is in the transcript, or in the work")
        body = encode_handed(
            HandedWork(
                handover=handover,
                env_version=draft.env_version,
                snapshot_id=snapshot_id,
                work=draft.work,
                shown=None if transcript is None else tuple(transcript),
                record=record,
            )
        )
        if len(body) > runtime.stages.handover_max_bytes:
            raise ValueError(f"it has {len(body)} bytes (HERMES_QUEUE_STAGES_HANDOVER_MAX_BYTES)")
        return body

    async def _drop(self, snapshot_id: str) -> None:
        backend = self._runtime.backend
        if offers(backend, KeepsSnapshots):
            await dropped(backend, snapshot_id)


def _has_secret(clean: Scrubber, work: bytes | None) -> bool:
    text = (work or b"").decode(errors="replace")
    return clean.text(text) != text


def _may_be_given(steps: StepProgress) -> bool:
    """Whether another worker would grade the same: one step, whose slot is as its agent left it.

    Not again after such work was lost: an agent whose work cannot be restored would get another
    attempt each time, and graders that cannot take any would use up all attempts.
    """
    draft = steps.draft
    ended = draft.agent.stop_reason
    return (
        not steps.several
        and not draft.is_handed
        and not any(each.failure.type == WorkLost.__name__ for each in draft.earlier)
        and ended is not None
        and ended != "slot_killed"
        and recorded_params(draft.job.agent) is None
    )


def _fill(draft: Draft, given: HandedWork, host: str) -> None:
    """Bring the draft to where the worker of the agent has left it."""
    record, agent = given.record, draft.agent
    agent.messages.extend(record.messages)
    agent.turns.extend(record.turns)
    agent.events.extend(dict(event) for event in record.events)
    agent.nodes.extend(_same(record.nodes, record.messages))
    agent.branches.extend(record.branches)
    agent.transcript = None if given.shown is None else list(given.shown)
    agent.program = record.program
    agent.stop_reason = record.stop_reason
    counts = record.tool_calls
    agent.attempted, agent.schema_valid = counts.attempted, counts.schema_valid
    agent.ok, agent.error = counts.ok, counts.error
    draft.tools, draft.policy_begun = record.tools, record.policy_begun
    draft.evaluation = record.evaluation
    draft.work = given.work
    draft.booked = agent.usage  # with the hand-over
    draft.handed_seconds = dict(record.stage_seconds)
    draft.handed_seconds["verify_queue"] = draft.clock.stage_seconds.pop("queue", 0.0)
    draft.handed_usd = record.sandbox_usd or 0.0
    origin = record.provenance
    draft.queued_at, draft.begun_at = origin.queued_at, origin.begun_at
    event = {
        "turn": len(agent.turns),
        "event": "handed_over",
        "from_host": origin.host,
        "host": host,
        **booked_facts(Spent.of(record.usage, record.cost_usd)),
    }
    agent.events.append(event)
    agent.changed()


def _same(nodes: Sequence[Node], messages: Sequence[Message]) -> list[Node]:
    """The nodes, with the very objects of `messages` where they hold one of these."""
    known = {message.model_dump_json(): message for message in messages}
    found = []
    for node in nodes:
        message = known.get(node.message.model_dump_json())
        found.append(node if message is None else node.model_copy(update={"message": message}))
    return found
