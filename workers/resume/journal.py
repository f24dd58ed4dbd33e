"""The turn journal of one attempt: whether it continues one, and what it adds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.loop import MAX_CALLS_PER_TURN
from hermes_queue.agent.resumption import Continuation, Resumable
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import HermesQueueError, NoSnapshot
from hermes_queue.extensions import offers
from hermes_queue.ledger import Begun, Claim, Spent
from hermes_queue.ledger.answers import booked_facts
from hermes_queue.ledger.fleet.handovers import snapshot_needs
from hermes_queue.ledger.fleet.journal import read_journal
from hermes_queue.ledger.poison import item_hash
from hermes_queue.models import Message, Usage
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.snapshots import KeepsSnapshots
from hermes_queue.tools.toolbox import Toolbox, load_tool
from workers.bounds.copies import dropped
from workers.draft import Draft
from workers.resume.kept import Kept, paid
from workers.resume.recorder import Recorder
from workers.resume.replies import note_replies
from workers.runtime import Runtime
from workers.upkeep import metering

logger = logging.getLogger(__name__)


class TurnJournal:
    """One attempt's side of `journal:{id}`."""

    def __init__(self, runtime: Runtime, claim: Claim, begun: Begun, draft: Draft) -> None:
        self._runtime = runtime
        self._claim = claim
        self._begun = begun
        self._draft = draft
        self._kept: Kept | None = None
        self.continuation: Continuation | None = None
        """The state of the agent that is continued; None = it begins."""
        self._recorder: Recorder | None = None
        self._left = ""
        """The snapshot of an earlier attempt's turns that are not continued."""

    async def restored(
        self,
        context: SlotContext,
        tools: Sequence[str],
        make_prompt: Callable[[], Sequence[Message]],
    ) -> bool:
        """Continue the turns of an earlier attempt if that is possible; the draft then has them.

        Returns whether the slot has the files as they were after these turns. If not, its env has
        to set it up.

        Raises:
            SandboxError: the sandbox could not answer.
        """
        if not self._begun.has_journal:
            return False
        kept = await self._continue(context, tools, make_prompt)
        if kept is None:
            self._left = await self._needed()
        return bool(kept and kept.snapshot_id)

    async def _continue(
        self,
        context: SlotContext,
        tools: Sequence[str],
        make_prompt: Callable[[], Sequence[Message]],
    ) -> Kept | None:
        entries: list[bytes] = []
        try:
            entries = await self._entries()
            if self._begun.deaths:
                raise ValueError("a worker that ran it alone has died: its turns may be why")
            kept = await self._read(entries, tools)
            if kept is None:
                if entries:
                    raise ValueError("there is no copy of the slot's files")
                return None
            prompt, schemas = make_prompt(), [load_tool(name).schema() for name in tools]
            result = kept.result(prompt)
            if kept.last.basis != _basis(self._draft, schemas, prompt):
                raise ValueError("prompt, tools or env have changed")
            params = self._draft.job.agent.params
            continuation = Continuation.of(
                result, len(prompt), schemas, params, kept.state, MAX_CALLS_PER_TURN
            )
            if kept.snapshot_id:
                await self._restore(kept.snapshot_id, context)
        except (ValueError, NoSnapshot) as error:
            await self._begin_anew(entries, error)
            return None
        _, lost = await self._paid(entries, kept.entries)
        # Nothing waits in between: a hand-back books all of the journal, or nothing of it.
        self._kept, self.continuation = kept, continuation
        self._draft.continue_from(result, kept, self._begun.booked_epoch)
        self._draft.pay_for(lost)
        self._note_continuation(kept)
        return kept

    async def _entries(self) -> list[bytes]:
        runtime, bounds = self._runtime, self._runtime.resume
        call = partial(
            read_journal,
            runtime.ledger,
            self._claim.trajectory_id,
            most=3 * bounds.max_turns,  # a turn has a step and a mark at most
            most_bytes=2 * bounds.max_bytes,
        )
        return await runtime.until_redis_answers(call)

    async def _read(self, entries: Sequence[bytes], tools: Sequence[str]) -> Kept | None:
        files = any(load_tool(name).runs_in == "slot" for name in tools)
        read = partial(Kept.of, epoch=self._claim.epoch, needs_files=files)
        return await self._runtime.in_thread(read, entries)

    async def _paid(self, entries: Sequence[bytes], after: int = 0) -> tuple[int, Usage]:
        find = partial(paid, entries, after=after, booked_epoch=self._begun.booked_epoch)
        return await self._runtime.in_thread(find)

    async def pay(self) -> None:
        """Count the turns of an earlier attempt, if this one ends before it has read them.

        The end of the trajectory, or its next attempt, deletes them.
        """
        if not self._begun.has_journal or self._draft.counts_journal:
            return
        with suppress(ValueError):
            _, usage = await self._paid(await self._entries())
            self._draft.pay_for(usage)

    async def _restore(self, snapshot_id: str, context: SlotContext) -> None:
        backend = self._runtime.backend
        if not offers(backend, KeepsSnapshots) or not backend.capabilities.snapshot:
            raise NoSnapshot("this backend keeps no snapshots")
        try:
            await backend.restore(context.slot, snapshot_id)
        except NoSnapshot:
            await context.renew()
            raise

    async def _begin_anew(self, entries: Sequence[bytes], error: Exception) -> None:
        turns, usage = await self._paid(entries)
        self._draft.pay_for(usage)
        name, extra = self._claim.trajectory_id, {"action": "not_resumed"}
        logger.warning("%s begins anew: %s", name, error, extra=extra)
        lost = self._draft.lost
        event = {
            "turn": 0,
            "event": "not_resumed",
            "reason": str(error)[:300],
            "lost_turns": turns,
            "prompt_tokens": lost.prompt_tokens,
            "completion_tokens": lost.completion_tokens,
        }
        self._draft.agent.events.append(event)
        metering.resumed(self._runtime.meter, self._draft.job.env, None)

    def _note_continuation(self, kept: Kept) -> None:
        draft, usage = self._draft, kept.usage()
        draft.agent.events.append(
            {
                "turn": len(kept.turns),
                "event": "resumed",
                "attempt": draft.attempt,
                "epoch": draft.epoch,
                "turns": len(kept.turns),
                "lost_turns": kept.lost_turns,
                "agent_s": round(kept.last.agent_s, 3),
                "from_host": kept.last.host,
                "host": self._runtime.host,
                **booked_facts(Spent.of(draft.booked, draft.cost_usd(draft.booked))),
            }
        )
        message = "%s continues after %d turns with %d tokens; %d later turns are lost"
        extra = {"action": "resumed"}
        tokens = usage.completion_tokens
        name, lost = self._claim.trajectory_id, kept.lost_turns
        logger.info(message, name, len(kept.turns), tokens, lost, extra=extra)
        metering.resumed(self._runtime.meter, draft.job.env, usage)

    def recorder(
        self, chat: ChatClient, toolbox: Toolbox, prompt: Sequence[Message], context: SlotContext
    ) -> Recorder | None:
        """What adds the agent's turns to the journal, until it is stopped; None if it has none."""
        backend, files = self._runtime.backend, toolbox.uses_slot
        keeps = offers(backend, KeepsSnapshots) and backend.capabilities.snapshot
        if not offers(chat, Resumable) or (files and not keeps):
            return None
        self._recorder = Recorder(
            self._runtime,
            self._claim,
            self._draft,
            basis=partial(_basis, self._draft, toolbox.schemas, prompt),
            slot=(lambda: context.slot) if files else None,
            prompt=len(prompt),
            kept=self._kept,
        )
        return self._recorder

    @asynccontextmanager
    async def paying(self) -> AsyncIterator[None]:
        """Note the replies to a program while the block runs: they are paid for if we die."""
        noting = asyncio.create_task(note_replies(self._runtime, self._claim, self._draft))
        try:
            yield
        finally:
            await end_tasks(noting)

    async def forget(self) -> None:
        """Delete the snapshots if the trajectory has ended, or begins anew. Never raises.

        If another worker has taken it over, that one may continue from the newest.
        """
        backend = self._runtime.backend
        own = self._recorder.copies if self._recorder else set[str]()
        if self._kept and not self._recorder:
            own = {self._kept.snapshot_id}
        known = {*own, self._left} - {""}
        if not known or not offers(backend, KeepsSnapshots):
            return
        try:
            needed = await self._named_snapshot()
        except HermesQueueError:  # `UnneededSnapshots` or the provider deletes them later
            return
        await asyncio.gather(*(dropped(backend, each) for each in known - {needed}))

    async def _needed(self) -> str:
        """The snapshot that the journal names; "" = none, or Redis does not answer."""
        try:
            return await self._named_snapshot()
        except HermesQueueError:
            return ""

    async def _named_snapshot(self) -> str:
        name, ledger = self._claim.trajectory_id, self._runtime.ledger
        return (await self._runtime.in_thread(snapshot_needs, ledger, [name]))[name].snapshot_id


def _basis(draft: Draft, schemas: Sequence[Mapping[str, Any]], prompt: Sequence[Message]) -> str:
    """Hash of what the agent's turns depend on beside each other."""
    job = draft.job
    facts: dict[str, Any] = {
        "env": [job.env, draft.env_version],
        "item": item_hash(job),
        "agent": job.agent.model_dump(mode="json"),
        "prompt": [message.model_dump(mode="json") for message in prompt],
        "tools": list(schemas),
    }
    text = json.dumps(facts, sort_keys=True, default=repr).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()
