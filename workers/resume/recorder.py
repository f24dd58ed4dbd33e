"""Adds an agent's turns to its journal while it runs, and copies its slot's files now and then.

Neither holds the agent up: the files are copied while the model samples its next reply, and only
the calls in that reply wait for the copy. Whatever fails here costs no more than the journal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from hermes_queue.agent.resumption import LoopState
from hermes_queue.bodies.steps import JournalMark, JournalStep, encode_entry, without_known_ids
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import NoSnapshot, RedisFull, RedisUnavailable, SandboxError
from hermes_queue.ledger import Claim
from hermes_queue.ledger.fleet.journal import append
from hermes_queue.models import ToolCallCounts
from hermes_queue.sandbox.base import Slot
from hermes_queue.sandbox.snapshots import KeepsSnapshots, Snapshot
from hermes_queue.telemetry.scrubbing import scrubber
from workers.bounds.copies import copied, dropped
from workers.draft import Draft
from workers.resume.kept import Kept
from workers.runtime import Runtime
from workers.upkeep import metering

logger = logging.getLogger(__name__)

_REST = 20.0
"""Pause after a copy of the files, in multiples of the time that it took."""


@dataclass(frozen=True, slots=True)
class _Note:
    """The state after one turn; the turn itself is in the draft, whose lists only grow."""

    epoch: int
    host: str
    messages: int
    events: int
    counts: tuple[int, int, int, int]
    waited_s: float
    agent_s: float
    used_s: float
    loop: LoopState


class Recorder:
    """See `Checkpoints`."""

    def __init__(
        self,
        runtime: Runtime,
        claim: Claim,
        draft: Draft,
        *,
        basis: Callable[[], str],
        slot: Callable[[], Slot] | None,
        prompt: int,
        kept: Kept | None,
    ) -> None:
        """Prepare.

        `slot`: that whose files matter, None = those of none do. `prompt`: number of messages of
        the prompt. `kept`: turns that are in the draft already.
        """
        self._runtime = runtime
        self._claim = claim
        self._draft = draft
        self._settings = runtime.resume
        self._basis = basis
        self._slot = slot
        self._prompt = prompt
        self._notes = _notes_of(kept, prompt) if kept else []
        self._sent = len(self._notes)
        """Turns that are in Redis."""
        self._after = kept.entries if kept else 0
        self._size_bytes = kept.size_bytes if kept else 0
        self._begun = kept is not None
        self._closed = False
        self.snapshot_id = kept.snapshot_id if kept else ""
        """The newest copy of the files that the journal names; "" = none."""
        self.copies = {self.snapshot_id} - {""}
        """All that may be there: also one whose naming was broken off, by the agent's end."""
        self._copied_at = self._started = time.monotonic()
        self._copied_turns = len(self._notes)
        self._not_before = 0.0
        self._agent_s = kept.last.agent_s if kept else 0.0
        self._waited_s = draft.agent.waited_s
        self._task: asyncio.Task[None] | None = None
        self._still = asyncio.Event()
        """Set while nothing copies the slot's files."""
        self._still.set()

    async def settled(self) -> None:
        """See `Checkpoints`."""
        if not self._still.is_set():
            await self._draft.clock.not_counting(self._copied)()

    async def _copied(self) -> None:
        await self._still.wait()

    def stepped(self, state: LoopState) -> None:
        """See `Checkpoints`."""
        self._notes.append(self._note(state))
        if self._closed or (self._task is not None and not self._task.done()):
            return  # this turn goes with the next one
        if self._is_due():
            self._still.clear()
            self._task = asyncio.create_task(self._guarded(True))
        elif self._begun:
            self._task = asyncio.create_task(self._guarded(False))

    async def stop(self) -> None:
        """End: the agent takes no more turns."""
        self._closed = True
        if self._task is not None:
            await end_tasks(self._task)

    def _note(self, state: LoopState) -> _Note:
        agent, now = self._draft.agent, time.monotonic()
        own_s = now - self._started - (agent.waited_s - self._waited_s)
        return _Note(
            epoch=self._claim.epoch,
            host=self._runtime.host,
            messages=len(agent.messages),
            events=len(agent.events),
            counts=(agent.attempted, agent.schema_valid, agent.ok, agent.error),
            waited_s=agent.waited_s,
            agent_s=self._agent_s + max(0.0, own_s),
            used_s=self._draft.job.limits.total_timeout_s - self._draft.clock.total_left_s,
            loop=state,
        )

    def _is_due(self) -> bool:
        now, settings = time.monotonic(), self._settings
        turns = len(self._notes) - self._copied_turns
        due = turns >= settings.snapshot_turns or now - self._copied_at >= settings.snapshot_s
        return due and now >= self._not_before

    async def _guarded(self, copy: bool) -> None:
        turns = len(self._notes)
        try:
            snapshot = None
            try:
                if copy and self._slot:
                    snapshot = await self._copy(self._slot())
                elif copy:
                    self._rest(0.0)
            finally:
                self._still.set()
            if snapshot or self._begun or not self._slot:
                await self._add(turns, snapshot)
        except Exception:  # the trajectory goes on without a journal
            self._closed = True
            extra = {"action": "journal_failed"}
            logger.exception("the turns are journaled no longer", extra=extra)

    async def _copy(self, slot: Slot) -> Snapshot | None:
        began, meter = time.monotonic(), self._runtime.meter
        backend = cast(KeepsSnapshots, self._runtime.backend)
        try:
            limit_s = self._draft.job.limits.setup_timeout_s
            snapshot = await copied(self._noted(backend.snapshot(slot)), limit_s=limit_s)
        except (NoSnapshot, SandboxError) as error:  # a lost slot is found by the next tool call
            self._rest(time.monotonic() - began)
            extra = {"action": "no_snapshot"}
            logger.info("no snapshot of the slot: %s", error, extra=extra)
            metering.snapshot(meter, None, 0.0)
            return None
        took_s = time.monotonic() - began
        self._rest(took_s)
        metering.snapshot(meter, snapshot.size_bytes, took_s)
        return snapshot

    async def _noted(self, copy: Coroutine[Any, Any, Snapshot]) -> Snapshot:
        snapshot = await copy
        self.copies.add(snapshot.snapshot_id)
        return snapshot

    def _rest(self, took_s: float) -> None:
        self._copied_at, self._copied_turns = time.monotonic(), len(self._notes)
        self._not_before = self._copied_at + _REST * took_s

    async def _add(self, turns: int, snapshot: Snapshot | None) -> None:
        """Send what Redis does not have of the first `turns`, and the mark of a copy after them."""
        spent = self._draft.spent_in(turns)
        try:
            entries = await self._runtime.in_thread(self._encoded, turns, snapshot)
        except (ValueError, OverflowError) as error:  # a text or a number that no entry can hold
            self._close(f"a turn cannot be encoded: {error}"[:300])
            return
        size = self._size_bytes + sum(map(len, entries))
        if self._closed or turns > self._settings.max_turns or size > self._settings.max_bytes:
            self._close("it is as large as a journal may be")
            return
        call = append(
            self._claim,
            entries,
            owner=self._runtime.owner,
            after=self._after,
            ttl_s=self._settings.ttl_s,
            spent=spent,
            # The newest in any case: of an earlier call without an answer the mark is dropped.
            snapshot_id=snapshot.snapshot_id if snapshot else self.snapshot_id,
        )
        try:
            verdict = await self._runtime.once(call)
        except (RedisUnavailable, RedisFull) as error:  # maybe it was made: the next one repeats it
            extra = {"action": "journal_wait"}
            logger.info("turns are not journaled yet: %s", error, extra=extra)
            return
        if verdict == "gap":  # it has expired: all of it again, with the next turn
            self._sent = self._after = self._size_bytes = 0
            self._not_before = 0.0
            self._copied_at = 0.0
        elif verdict == "stale":
            self._close("the lease is another worker's")
        else:
            self._begun = True
            self._sent, self._after = turns, self._after + len(entries)
            self._size_bytes = size
            if snapshot:
                await self._replace(snapshot)

    async def _replace(self, snapshot: Snapshot) -> None:
        self.snapshot_id = snapshot.snapshot_id
        for old in self.copies - {self.snapshot_id}:
            await dropped(cast(KeepsSnapshots, self._runtime.backend), old)
            self.copies.discard(old)

    def _close(self, why: str) -> None:
        if not self._closed:
            extra = {"action": "journal_closed"}
            logger.info("the turns are journaled no longer: %s", why, extra=extra)
        self._closed = True

    def _encoded(self, turns: int, snapshot: Snapshot | None) -> list[bytes]:
        """The entries. In a thread, while the draft's lists may grow."""
        basis, clean = self._basis(), scrubber()
        entries: list[JournalStep | JournalMark] = []
        for turn in range(self._sent, turns):
            step = self._step(turn, basis)
            if clean.finds(step):
                # The model has seen the secret; without it the agent could not go on as it was.
                self._close("a secret is in them")
                return []
            entries.append(step)
        if snapshot:
            epoch, snapshot_id = self._claim.epoch, snapshot.snapshot_id
            entries.append(JournalMark(epoch=epoch, turns=turns, snapshot_id=snapshot_id))
        return [encode_entry(entry) for entry in entries]

    def _step(self, turn: int, basis: str) -> JournalStep:
        agent, note = self._draft.agent, self._notes[turn]
        before = self._notes[turn - 1] if turn else None
        first, first_event = (before.messages, before.events) if before else (self._prompt, 0)
        record, shared = without_known_ids(
            agent.turns[turn], agent.turns[turn - 1] if turn else None
        )
        attempted, valid, ok, error = note.counts
        return JournalStep(
            epoch=note.epoch,
            turn=turn,
            basis=basis,
            host=note.host,
            messages=tuple(agent.messages[first : note.messages]),
            record=record,
            shared=shared,
            events=tuple(agent.events[first_event : note.events]),
            tool_calls=ToolCallCounts(attempted=attempted, schema_valid=valid, ok=ok, error=error),
            format_errors=note.loop.format_errors,
            repeats=note.loop.repeats,
            waited_s=note.waited_s,
            agent_s=note.agent_s,
            used_s=note.used_s,
            ended_by_token=note.loop.ended_by_token,
            chat=dict(note.loop.chat),
            lost=self._draft.lost,
            policy_begun=self._draft.policy_begun,
        )


def _notes_of(kept: Kept, prompt: int) -> list[_Note]:
    """The notes of turns that were kept, in case that all have to be sent again."""
    notes: list[_Note] = []
    messages, events = prompt, 0
    for step in kept.steps:
        counts = step.tool_calls
        messages, events = messages + len(step.messages), events + len(step.events)
        notes.append(
            _Note(
                epoch=step.epoch,
                host=step.host,
                messages=messages,
                events=events,
                counts=(counts.attempted, counts.schema_valid, counts.ok, counts.error),
                waited_s=step.waited_s,
                agent_s=step.agent_s,
                used_s=step.used_s,
                loop=LoopState(step.format_errors, step.repeats, step.ended_by_token, step.chat),
            )
        )
    return notes
