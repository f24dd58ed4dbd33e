"""A trajectory whose worker has ended goes on where its slot's files can be had, else anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import steps_env
from chat_endpoint import ChatEndpoint, completion
from counting_model import CountingModel
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job
from snapshot_shelf import Died, Shelf

from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.loop import AgentResult
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.bodies.codec import encode_record
from hermes_queue.bodies.steps import JournalStep, decode_entry, encode_entry
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import RedisUnavailable, SandboxError
from hermes_queue.ledger import Claim, Ledger
from hermes_queue.ledger.fleet.handovers import snapshot_needs
from hermes_queue.ledger.fleet.journal import append, read_journal
from hermes_queue.models import ScoredTrajectory, TrajectoryJob, Turn, Usage
from hermes_queue.sandbox.base import (
    Capabilities,
    ExecutionRequest,
    ExecutionResult,
    Slot,
)
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import LeaseSettings, ModelSettings, ResumeSettings
from workers.attempt import Attempt, Services
from workers.draft import Draft
from workers.record import record_of
from workers.resume.journal import TurnJournal
from workers.resume.replies import note_replies
from workers.resume.unneeded import delete_unneeded
from workers.rollout import rollout
from workers.runtime import Runtime
from workers.spool import Spool

pytestmark = pytest.mark.xdist_group("openai")
TURNS = 6


class Host:
    """Runs attempts of one job, one after the other, each as another worker."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self.ledger = ledger
        self.shelf = Shelf()
        self.directory = directory
        self.settings = ResumeSettings(snapshot_turns=2)
        self.workers = 0
        self.is_hasty = False
        """Whether turns follow each other without a pause."""
        self.drafts: list[Draft] = []
        self.journals: list[TurnJournal] = []
        self.take_back = swept(ledger)

    def runtime(self) -> Runtime:
        self.workers += 1
        owner = f"w{self.workers}"
        spool = Spool(self.directory, "d", owner)
        backend = cast(Any, self.shelf)
        made = Runtime(owner=owner, ledger=self.ledger, backend=backend, spool=spool)
        made.resume = self.settings
        return made

    async def attempt(self, job: TrajectoryJob, dies_at: str = "") -> Draft:
        """Run it; with `dies_at` the worker dies at that command, and its job is taken back."""
        runtime = self.runtime()
        begun = begin(self.ledger, job, owner=runtime.owner)
        claim = Claim(job.trajectory_id, begun.epoch)
        draft = Draft.of(job, begun)
        self.drafts.append(draft)
        self.shelf.dies_at = dies_at

        journal = TurnJournal(runtime, claim, begun, draft)
        self.journals.append(journal)

        async def measured() -> None: ...

        async def journaled() -> None:
            """A scripted agent is faster than any journal; models are not."""
            if journal._recorder and journal._recorder._task:
                await asyncio.wait([journal._recorder._task])

        with suppress(Died):
            model = ModelSettings(trusted_urls=job.agent.base_url or "")
            attempt = Attempt(
                draft=draft,
                row=job.item or {},
                services=Services(runtime.backend, model),
                on_measured=measured,
                before_turn=None if self.is_hasty else journaled,
                journal=journal,
            )
            await rollout(attempt)
        runtime.executor.shutdown()
        if dies_at:
            age_lease(self.ledger, job)
            assert self.take_back() == [job.trajectory_id]
        return draft

    def entries(self, job: TrajectoryJob) -> list[Any]:
        found = read_journal(self.ledger, job.trajectory_id, most=1000, most_bytes=1 << 20)
        return list(map(decode_entry, found))


@pytest.fixture
def host(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    # After a copy that took long here, the next one would not be due at its turn.
    monkeypatch.setattr("workers.resume.recorder._REST", 0.0)
    return Host(ledger, tmp_path)


@pytest.fixture
async def model() -> AsyncIterator[CountingModel]:
    async with CountingModel(TURNS) as model:
        yield model
        await close_clients()


def job_of(ledger: Ledger, agent: dict[str, Any], env: str = "ENV", **more: Any) -> TrajectoryJob:
    job = make_job(env=f"steps_env:{env}", item={"turns": TURNS}, agent=agent, **more)
    enqueue(ledger, job)
    return job


def record(draft: Draft) -> ScoredTrajectory:
    return record_of(draft, owner="w", host="h")


def events(draft: Draft, kind: str) -> list[dict[str, Any]]:
    return [event for event in draft.agent.events if event["event"] == kind]


async def test_tokens_are_exact_over_two_deaths_and_no_kept_turn_is_sampled_again(
    host: Host, ledger: Ledger, model: CountingModel
) -> None:
    job = job_of(ledger, model.agent)
    await host.attempt(job, dies_at="echo 3")
    await host.attempt(job, dies_at="echo 5")
    draft = await host.attempt(job)
    found = record(draft)
    assert token_violations(found) == []
    assert len(found.sequences or ()) == 1
    assert (found.score, found.stop_reason, len(found.turns)) == (1.0, "no_tool_call", TURNS + 1)
    assert model.sampled == [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6]
    assert [(each["turn"], each["epoch"]) for each in events(draft, "resumed")] == [(2, 2), (4, 3)]
    assert found.report["found"] == ["begin", *map(str, range(TURNS))]
    whole = record(await host.attempt(job_of(ledger, model.agent, instance="undisturbed")))
    assert found.sequences == whole.sequences
    assert found.messages == whole.messages
    assert found.usage == whole.usage


async def test_replies_with_prompted_tools_are_sent_as_they_were_written(
    host: Host, ledger: Ledger
) -> None:
    sent: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        sent.append(json.dumps(body["messages"]))
        return completion(f"turn {turn}: {steps_env.CALL % turn}" if turn < TURNS else "done")

    async with ChatEndpoint(answer) as model:
        params = {"tools": "prompted", "probe_tools": False}
        agent = {"kind": "openai", "model": "m", "base_url": model.url, "params": params}
        job = job_of(ledger, agent)
        await host.attempt(job, dies_at="echo 3")
        await host.attempt(job, dies_at="echo 5")
        found = record(await host.attempt(job))
        disturbed, sent[:] = set(sent), []
        whole = record(await host.attempt(job_of(ledger, agent, instance="undisturbed")))
    assert disturbed == set(sent)
    assert (found.score, found.messages) == (1.0, whole.messages)


async def test_what_was_used_before_counts_towards_every_limit(host: Host, ledger: Ledger) -> None:
    job = job_of(ledger, steps_env.played(TURNS), limits={"max_turns": 5})
    first = await host.attempt(job, dies_at="echo 4")
    assert first.agent.attempted == 5
    draft = await host.attempt(job)
    assert (draft.agent.stop_reason, len(draft.agent.turns)) == ("max_turns", 5)
    assert draft.agent.tool_calls.ok == 5
    [event] = events(draft, "resumed")
    assert draft.kept_agent_s == pytest.approx(event["agent_s"], abs=0.001)
    assert draft.clock.used_s > draft.kept_agent_s > 0


async def test_tokens_that_a_hand_back_has_booked_are_not_booked_again(
    host: Host, ledger: Ledger, model: CountingModel
) -> None:
    job = job_of(ledger, model.agent)
    first = await host.attempt(job, dies_at="echo 4")
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "booked", 1)
    draft = await host.attempt(job)
    kept = draft.agent.turns[:4]
    assert draft.agent.turns[:4] == first.agent.turns[:4]
    tokens = sum(turn.usage.prompt_tokens + turn.usage.completion_tokens for turn in kept)
    whole = draft.agent.usage
    left = whole.prompt_tokens + whole.completion_tokens - tokens
    assert draft.spent.tokens == left
    on_disk = record_of(draft, owner="w2", host="h")
    ledger.publish(on_disk, encode_record(on_disk), owner="w2", finished_ttl_s=60)
    assert ledger.client.hget("hq:totals", "tokens") == b"%d" % left, "by whoever finds it, too"


@pytest.mark.parametrize(("booked", "turns", "tokens"), [(0, 4, 606), (1, 2, 404)])
async def test_what_cannot_be_continued_is_paid_for_by_the_next_attempt_and_booked_once(
    host: Host, ledger: Ledger, booked: int, turns: int, tokens: int
) -> None:
    job = job_of(ledger, steps_env.played(TURNS))
    for epoch in (1, 2):
        runtime = host.runtime()
        runtime.lease = LeaseSettings(renew_s=0.01)
        claim = Claim(job.trajectory_id, begin(ledger, job, owner=runtime.owner).epoch)
        usage = Usage(prompt_tokens=100 * epoch, completion_tokens=epoch)
        draft = Draft(job, 1, epoch, agent=AgentResult(turns=[Turn(usage=usage)] * 2))
        noting = asyncio.create_task(note_replies(runtime, claim, draft))
        while len(host.entries(job)) < epoch:
            await asyncio.sleep(0.01)
        await end_tasks(noting)
        runtime.executor.shutdown()
        age_lease(ledger, job)
        assert host.take_back() == [job.trajectory_id]
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "booked", booked)
    draft = await host.attempt(job)
    [event] = events(draft, "not_resumed")
    assert event["lost_turns"] == turns
    assert event["prompt_tokens"] + event["completion_tokens"] == tokens
    assert (draft.spent.tokens, draft.counts_journal) == (tokens, True)


async def test_an_agent_that_does_not_touch_its_slot_continues_on_any_host(
    host: Host, ledger: Ledger
) -> None:
    job = job_of(ledger, steps_env.calculated(TURNS), env="CALCULATING")

    def die(*_: Any) -> None:
        raise Died

    host.shelf.capabilities = Capabilities(isolation=True)
    started = asyncio.ensure_future(host.attempt(job))
    while len(host.entries(job)) < 3:
        await asyncio.sleep(0)
        assert not started.done()
    started.cancel()
    await asyncio.wait([started])
    age_lease(ledger, job)
    assert host.take_back() == [job.trajectory_id]
    draft = await host.attempt(job)
    [event] = events(draft, "resumed")
    assert event["turns"] >= 3
    assert len(draft.agent.turns) == TURNS + 1


# --- where it cannot be continued ---------------------------------------------------------


def without_the_copy(host: Host, job: TrajectoryJob) -> None:
    host.shelf.kept.clear()


def damaged(host: Host, job: TrajectoryJob) -> None:
    host.ledger.client.lset(f"hq:journal:{job.trajectory_id}", 1, b"\x28\xb5\x2f\xfd?")


def foreign(host: Host, job: TrajectoryJob) -> None:
    step = host.entries(job)[1].model_copy(update={"basis": "0" * 64})
    host.ledger.client.lset(f"hq:journal:{job.trajectory_id}", 1, encode_entry(step))


def oversized(host: Host, job: TrajectoryJob) -> None:
    host.ledger.client.rpush(f"hq:journal:{job.trajectory_id}", bytes(10 << 20))


def endless(host: Host, job: TrajectoryJob) -> None:
    host.ledger.client.rpush(f"hq:journal:{job.trajectory_id}", *[b"x"] * 2000)


def of_the_future(host: Host, job: TrajectoryJob) -> None:
    step = host.entries(job)[-1].model_copy(update={"epoch": 7})
    host.ledger.client.rpush(f"hq:journal:{job.trajectory_id}", encode_entry(step))


def with_a_forged_reply(host: Host, job: TrajectoryJob) -> None:
    step = host.entries(job)[1]
    forged = step.model_copy(update={"messages": step.messages[1:]})
    host.ledger.client.lset(f"hq:journal:{job.trajectory_id}", 1, encode_entry(forged))


def with_another_rewrite(host: Host, job: TrajectoryJob) -> None:
    event = {"turn": 1, "event": "context_rewrite", "policy": "error", "reason": "refused"}
    step = host.entries(job)[1].model_copy(update={"events": (event,)})
    host.ledger.client.lset(f"hq:journal:{job.trajectory_id}", 1, encode_entry(step))


@pytest.mark.parametrize(
    "spoil",
    [
        without_the_copy,
        damaged,
        foreign,
        oversized,
        endless,
        of_the_future,
        with_a_forged_reply,
        with_another_rewrite,
    ],
)
async def test_a_job_begins_anew_with_a_journal(host: Host, ledger: Ledger, spoil: Any) -> None:
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 4")
    spoil(host, job)
    draft = await host.attempt(job)
    assert draft.verdict is not None
    assert draft.verdict.score == 1.0
    assert not events(draft, "resumed")
    [event] = events(draft, "not_resumed")
    assert event["reason"]
    journal, name = host.journals[-1], job.trajectory_id
    journal._runtime = host.runtime()
    await journal.forget()
    assert list(host.shelf.kept) == [snapshot_needs(ledger, [name])[name].snapshot_id]


async def test_a_task_of_several_steps_begins_anew_with_its_first(
    host: Host, ledger: Ledger
) -> None:
    job = make_job(
        env="stepped_env:ENV",
        item={"question": "1+1", "answer": "#### 2"},
        agent={"kind": "oracle"},
    )
    enqueue(ledger, job)
    await host.attempt(job, dies_at="solve 1")
    draft = await host.attempt(job)
    assert draft.verdict is not None
    assert (draft.verdict.report["scores"], len(draft.agent.turns)) == ([1, 2, 3], 6)
    assert host.entries(job) == [] == events(draft, "resumed")


async def test_a_job_under_which_a_worker_died_that_ran_it_alone_begins_anew(
    host: Host, ledger: Ledger
) -> None:
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 4")
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "quarantine_deaths", 1)
    draft = await host.attempt(job)
    assert not events(draft, "resumed")
    assert events(draft, "not_resumed")[0]["lost_turns"] == 4
    assert draft.counts_journal


async def test_turns_that_were_lost_with_two_workers_in_a_row_are_all_paid_for(
    host: Host, ledger: Ledger, model: CountingModel
) -> None:
    job = job_of(ledger, model.agent)
    for dies_at in ("echo 3", "echo 5"):
        await host.attempt(job, dies_at)
    draft = await host.attempt(job)
    lost = [host.drafts[0].agent.turns[2], host.drafts[1].agent.turns[4]]
    assert draft.lost == AgentResult(turns=lost).usage
    assert [event["lost_turns"] for event in events(draft, "resumed")] == [1, 1]


@pytest.mark.parametrize("ends", ["before it has a slot", "while it restores the files"])
async def test_kept_turns_are_paid_for_by_an_attempt_that_ends_before_it_has_read_them(
    host: Host, ledger: Ledger, model: CountingModel, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    job = job_of(ledger, model.agent)
    first = await host.attempt(job, dies_at="echo 4")
    kept = AgentResult(turns=first.agent.turns[:4]).usage

    async def fail(*_: Any) -> None:
        raise SandboxError("the box is gone")

    method = "acquire" if ends == "before it has a slot" else "restore"
    monkeypatch.setattr(host.shelf, method, fail)
    with pytest.raises(SandboxError):
        await host.attempt(job)
    draft, journal = host.drafts[-1], host.journals[-1]
    assert draft.spent.tokens == 0
    journal._runtime = host.runtime()
    for _ in range(2):
        await journal.pay()
        assert draft.spent.tokens == kept.prompt_tokens + kept.completion_tokens
    journal._runtime.executor.shutdown()


async def test_a_slot_with_processes_in_the_background_is_not_continued(
    host: Host, ledger: Ledger
) -> None:
    host.shelf.refuses = "processes run in the background"
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 4")
    assert host.entries(job) == []
    draft = await host.attempt(job)
    assert draft.verdict is not None
    assert (draft.verdict.score, events(draft, "resumed")) == (1.0, [])


# --- what it costs, and what is left --------------------------------------------------------


async def test_a_short_trajectory_costs_nothing(host: Host, ledger: Ledger) -> None:
    host.settings = ResumeSettings()
    job = job_of(ledger, steps_env.played(TURNS))
    draft = await host.attempt(job)
    assert draft.verdict is not None
    assert host.shelf.kept == {}
    assert not ledger.client.exists(f"hq:journal:{job.trajectory_id}")


async def test_the_wait_for_a_copy_counts_towards_no_deadline(host: Host, ledger: Ledger) -> None:
    host.is_hasty, copy = True, host.shelf.snapshot
    waits: list[int] = []

    async def slow(slot: Slot) -> Snapshot:
        agent, clock = host.drafts[-1].agent, host.drafts[-1].clock
        while len(agent.messages) % 2:  # until the reply is there whose calls have to wait
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        waits.append(len(clock._waits))
        return await copy(slot)

    host.shelf.snapshot = slow  # type: ignore[method-assign]
    draft = await host.attempt(job_of(ledger, steps_env.played(TURNS)))
    assert draft.verdict is not None
    assert waits
    assert all(waits)


async def test_a_copy_that_is_still_being_named_when_the_agent_ends_is_deleted_with_the_rest(
    host: Host, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Runtime.once

    async def unheard(runtime: Runtime, call: Any) -> Any:
        await once(runtime, call)
        await asyncio.Event().wait()

    host.is_hasty = True
    with monkeypatch.context() as patch:
        patch.setattr(Runtime, "once", unheard)
        draft = await host.attempt(job_of(ledger, steps_env.played(TURNS)))
    assert host.shelf.kept
    publish(ledger, record(draft))
    host.journals[0]._runtime = host.runtime()
    await host.journals[0].forget()
    assert host.shelf.kept == {}


async def test_a_worker_that_has_lost_its_lease_adds_nothing_and_takes_nothing_away(
    host: Host, ledger: Ledger
) -> None:
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 4")
    before, copies = host.entries(job), dict(host.shelf.kept)
    claim = Claim(job.trajectory_id, 1)
    late = append(claim, [b"late"], owner="w1", after=0, ttl_s=60, snapshot_id="other")
    assert ledger.make(late) == "stale"
    host.journals[0]._runtime = host.runtime()  # it was only hanging, and its attempt fails now
    await host.journals[0].forget()
    assert host.entries(job) == before
    assert host.shelf.kept == copies
    assert events(await host.attempt(job), "resumed")


async def test_the_copy_that_the_journal_names_is_needed_although_an_answer_was_lost(
    host: Host, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, calls = Runtime.once, [0]

    async def lost(runtime: Runtime, call: Any) -> Any:
        answer = await once(runtime, call)
        calls[0] += 1
        if calls[0] == 3:  # the second copy
            raise RedisUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(Runtime, "once", lost)
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 5")
    [mark] = [each for each in host.entries(job) if not isinstance(each, JournalStep)]
    assert snapshot_needs(ledger, [job.trajectory_id]) == {
        job.trajectory_id: (mark.snapshot_id, False)
    }
    assert events(await host.attempt(job), "resumed")


async def test_a_turn_takes_few_bytes_however_long_the_conversation_is(
    host: Host, ledger: Ledger, model: CountingModel
) -> None:
    job = job_of(ledger, model.agent)
    await host.attempt(job, dies_at="echo 5")
    steps = [each for each in host.entries(job) if isinstance(each, JournalStep)]
    prompts = [len(step.record.prompt_ids or ()) for step in steps[1:]]
    assert max(prompts) - min(prompts) <= 2


async def test_a_secret_is_not_journaled(host: Host, ledger: Ledger) -> None:
    agent = steps_env.played(TURNS)
    agent["params"]["messages"][2]["content"] = "hf_" + "a1" * 20  # type: ignore[index]
    job = job_of(ledger, agent)
    await host.attempt(job, dies_at="echo 5")
    assert len([each for each in host.entries(job) if isinstance(each, JournalStep)]) == 2
    assert [each["turn"] for each in events(await host.attempt(job), "resumed")] == [2]


async def test_no_more_turns_are_kept_than_allowed(host: Host, ledger: Ledger) -> None:
    host.settings = ResumeSettings(snapshot_turns=2, max_turns=3)
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 5")
    assert [each["turn"] for each in events(await host.attempt(job), "resumed")] == [2]


async def test_a_journal_that_has_expired_is_written_again(host: Host, ledger: Ledger) -> None:
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 3")
    run = host.shelf._run

    def forgetting(request: ExecutionRequest) -> ExecutionResult:
        if "echo 2" in request.command:
            ledger.client.delete(f"hq:journal:{job.trajectory_id}")
        return run(request)

    host.shelf._run = forgetting  # type: ignore[method-assign]
    await host.attempt(job, dies_at="echo 5")
    draft = await host.attempt(job)
    assert draft.verdict is not None
    assert draft.verdict.score == 1.0
    assert [each["turn"] for each in events(draft, "resumed")][-1] > 2


async def test_a_copy_that_a_worker_could_not_name_yet_is_not_deleted_at_once(
    host: Host, ledger: Ledger
) -> None:
    host.shelf.kept["orphan"] = ("nobody", [])
    backend, doubted = cast(Any, host.shelf), set[str]()
    assert await delete_unneeded(backend, ledger, ttl_s=600, doubted=doubted) == 0
    assert await delete_unneeded(backend, ledger, ttl_s=600, doubted=doubted) == 1


async def test_snapshots_that_no_journal_names_are_deleted(host: Host, ledger: Ledger) -> None:
    job = job_of(ledger, steps_env.played(TURNS))
    await host.attempt(job, dies_at="echo 4")
    [needed] = host.shelf.kept
    host.shelf.kept["orphan"] = ("nobody", [])
    backend = cast(Any, host.shelf)
    assert await delete_unneeded(backend, ledger, ttl_s=600) == 1
    assert list(host.shelf.kept) == [needed]
    assert await delete_unneeded(backend, ledger, ttl_s=100) == 1
