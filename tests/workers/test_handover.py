"""The agent in one worker, its grading in another: what is kept, counted once, and never lost."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import steps_env
from counting_model import CountingModel
from ledger_steps import age_lease, begin, enqueue, swept
from records import make_job
from snapshot_shelf import Died, Shelf

from envs.base import load_env
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.bodies import codec, handed
from hermes_queue.broker.pool import RunningTask, running
from hermes_queue.ledger import Claim, Ledger, Runs, Spent
from hermes_queue.ledger.cancelling import cancel
from hermes_queue.ledger.fleet.handovers import (
    grading_of,
    hand_over,
    note_graders,
    snapshot_needs,
)
from hermes_queue.ledger.fleet.lanes import note_lanes
from hermes_queue.ledger.poison import item_hash
from hermes_queue.models import ScoredTrajectory, TrajectoryJob
from hermes_queue.queues import lanes_with_quarantine
from hermes_queue.settings import ModelSettings, StageSettings, WorkerSettings
from workers import runtime as runtimes
from workers.bounds import copies
from workers.outbox import Outbox
from workers.resume.unneeded import delete_unneeded
from workers.runtime import Runtime
from workers.spool import Spool
from workers.stages.graders import GradersWatch
from workers.trajectory import run_trajectory
from workers.upkeep.recovery import publish_leftovers

pytestmark = pytest.mark.xdist_group("openai")
TURNS = 3
GRADED = ("no_tool_call", 1.0)


class Fleet:
    """Workers of one host, one at a time: of agents, and of graders."""

    def __init__(self, ledger: Ledger, directory: Path, callbacks: ThreadPoolExecutor) -> None:
        self.ledger = ledger
        self.shelf = Shelf()
        self.directory = directory
        self.callbacks = callbacks
        self.stages = StageSettings()
        self.workers = 0
        self.model = ModelSettings()
        self.take_back = swept(ledger)

    def runtime(self, stages: str) -> Runtime:
        self.workers += 1
        owner = f"w{self.workers}"
        made = Runtime(
            owner=owner,
            ledger=self.ledger,
            backend=cast(Any, self.shelf),
            spool=Spool(self.directory, "d", owner),
            worker=WorkerSettings(stages=cast(Any, stages)),
        )
        made.stages, made.model = self.stages, self.model
        self.latest = made
        return made

    async def run(self, job: TrajectoryJob, stages: str, *, attempt: int = 1) -> str:
        """Deliver it to a worker; returns the verdict for Flower."""
        runtime = self.runtime(stages)
        runtimes.install(runtime)
        self.task = RunningTask("id", None, self.callbacks)
        running._current.set(self.task)
        try:
            answer: str = await run_trajectory.run(job.trajectory_id, attempt)
            return answer
        finally:
            runtimes.install(None)
            runtime.executor.shutdown()

    async def die(self, job: TrajectoryJob, stages: str, *, at: str) -> None:
        """The same; the worker is silent from this command on, and its job is taken back."""
        self.shelf.hangs_at = at
        silent = asyncio.create_task(self.run(job, stages))
        await self.shelf.hung.wait()
        self.shelf.hangs_at = ""
        self.shelf.hung.clear()
        age_lease(self.ledger, job)
        assert self.take_back() == [job.trajectory_id]
        self.task.cancel_reason = "lease_lost"
        silent.cancel()
        assert await silent == "stopped: lease_lost"

    def graders(self) -> None:
        """Let there be a worker that grades."""
        note_graders(self.ledger, ["train"], host=socket.gethostname(), ttl_s=60)

    def fields(self, job: TrajectoryJob) -> dict[str, str]:
        found: Any = self.ledger.client.hgetall(f"hq:traj:{job.trajectory_id}")
        return {key.decode(): value.decode(errors="replace") for key, value in found.items()}

    def record(self, job: TrajectoryJob) -> ScoredTrajectory:
        body: Any = self.ledger.client.get(f"hq:body:{job.trajectory_id}")
        return codec.decode_record(body)

    def kept(self) -> tuple[int, int, int]:
        """Work, its list, and copies of files that are there."""
        client: Any = self.ledger.client
        return (
            len(list(client.scan_iter("hq:handover:*"))),
            client.zcard("hq:handed"),
            len(self.shelf.kept),
        )


@pytest.fixture
def fleet(ledger: Ledger, tmp_path: Path) -> Iterator[Fleet]:
    with ThreadPoolExecutor(1) as callbacks:
        made = Fleet(ledger, tmp_path, callbacks)
        made.graders()
        yield made


@pytest.fixture
async def model(fleet: Fleet) -> Any:
    async with CountingModel(TURNS) as model:
        fleet.model = ModelSettings(trusted_urls=model.url)
        yield model
        await close_clients()


def job_of(fleet: Fleet, model: CountingModel, **more: Any) -> TrajectoryJob:
    given = {"env": "steps_env:ENV", "item": {"turns": TURNS}, "agent": model.agent, **more}
    job = make_job(**given)
    enqueue(fleet.ledger, job)
    return job


def outcome(record: ScoredTrajectory) -> tuple[str, float | None]:
    return record.stop_reason, record.score


# --- as one worker does it ----------------------------------------------------------------


async def test_a_grader_publishes_what_one_worker_would(fleet: Fleet, model: CountingModel) -> None:
    alone, shared = job_of(fleet, model), job_of(fleet, model, instance="other")
    await fleet.run(alone, "all")
    assert await fleet.run(shared, "agent") == "handed over"
    assert fleet.fields(shared)["lane"] == "train.verify"
    assert await fleet.run(shared, "verify") == "no_tool_call 1.0 (group)"
    one, two = fleet.record(alone), fleet.record(shared)
    assert outcome(two) == outcome(one) == GRADED
    same = ("messages", "tools", "tool_calls", "usage", "report", "rewards", "status", "attempt")
    assert {n for n in same if getattr(one, n) != getattr(two, n)} == set()
    assert [turn.completion_ids for turn in two.turns] == [t.completion_ids for t in one.turns]
    assert two.sequences == one.sequences
    assert token_violations(two) == []
    assert two.attempts == ()
    assert set(one.stage_seconds) | {"verify_queue"} == set(two.stage_seconds)
    assert two.provenance.worker == "w3"
    assert [e["event"] for e in two.events if e not in one.events] == ["handed_over"]
    assert model.sampled == [0, 1, 2, 3] * 2
    assert fleet.kept() == (0, 0, 0)


async def test_the_tokens_of_the_agent_count_once(fleet: Fleet, model: CountingModel) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    handed = fleet.ledger.client.hget("hq:totals", "tokens")
    await fleet.run(job, "verify")
    assert fleet.ledger.client.hget("hq:totals", "tokens") == handed
    run: Any = fleet.ledger.client.hgetall("hq:run:run")
    usage = fleet.record(job).usage
    assert usage.completion_tokens > 0
    assert int(run.get(b"unpriced", 0)) <= 1
    assert int(run[b"running"]) == 0


async def test_they_count_once_if_the_grader_dies_with_the_record_on_its_disk(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    handed = fleet.ledger.client.hget("hq:totals", "tokens")

    async def dies(_: Outbox) -> str:
        raise Died

    monkeypatch.setattr(Outbox, "publish", dies)
    with pytest.raises(Died):
        await fleet.run(job, "verify")
    fleet.latest.spool.close()
    assert publish_leftovers(fleet.runtime("verify")) == 1
    record = fleet.record(job)
    assert outcome(record) == GRADED
    assert record.usage.completion_tokens > 0
    assert fleet.ledger.client.hget("hq:totals", "tokens") == handed


async def test_what_a_verification_has_failed_of_is_no_second_bill(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    fleet.shelf.breaks_at = "cat log"
    assert (await fleet.run(job, "verify")).startswith("retry: sandbox")
    fleet.shelf.breaks_at = ""
    assert fleet.fields(job)["lane"] == "train.verify"
    assert fleet.kept() == (1, 1, 1)
    await fleet.run(job, "verify", attempt=2)
    record = fleet.record(job)
    assert outcome(record) == GRADED
    [failed] = record.attempts
    assert (failed.usage.completion_tokens, failed.message_count) == (0, 0)
    assert "agent" not in failed.stage_seconds
    assert model.sampled == [0, 1, 2, 3], "the agent did not begin again"


# --- the worker of the agent grades for itself ----------------------------------------------


async def test_without_graders_an_agents_worker_grades(fleet: Fleet, model: CountingModel) -> None:
    fleet.ledger.client.delete("hq:graders:train")
    job = job_of(fleet, model)
    assert await fleet.run(job, "agent") == "no_tool_call 1.0 (group)"
    assert fleet.kept() == (0, 0, 0)


async def test_files_of_a_host_are_not_handed_to_graders_of_another(
    fleet: Fleet, model: CountingModel
) -> None:
    note_graders(fleet.ledger, ["train"], host="another", ttl_s=60)
    job = job_of(fleet, model)
    assert await fleet.run(job, "agent") == "no_tool_call 1.0 (group)"
    assert fleet.kept() == (0, 0, 0)


async def test_with_too_much_to_grade_an_agents_worker_grades(
    fleet: Fleet, model: CountingModel
) -> None:
    fleet.stages = StageSettings(handover_most=1)
    first, second = job_of(fleet, model), job_of(fleet, model, instance="second")
    assert await fleet.run(first, "agent") == "handed over"
    assert await fleet.run(second, "agent") == "no_tool_call 1.0 (group)"
    assert fleet.kept() == (1, 1, 1)


@pytest.mark.parametrize("why", ["no copy", "too large"])
async def test_work_that_cannot_be_handed_over_is_graded_where_it_is(
    fleet: Fleet, model: CountingModel, why: str
) -> None:
    if why == "no copy":
        fleet.shelf.refuses = "processes run in the background"
    job = job_of(fleet, model)
    if why == "too large":
        fleet.stages = fleet.stages.model_copy(update={"handover_max_bytes": 10})
    assert await fleet.run(job, "agent") == "no_tool_call 1.0 (group)"
    assert fleet.kept() == (0, 0, 0)


async def test_a_copy_that_cannot_be_deleted_costs_no_score(
    fleet: Fleet, model: CountingModel
) -> None:
    fleet.stages = StageSettings(handover_most=1)
    first, second = job_of(fleet, model), job_of(fleet, model, instance="second")
    fleet.shelf.drops_none = True
    assert await fleet.run(first, "agent") == "handed over"
    assert await fleet.run(second, "agent") == "no_tool_call 1.0 (group)"
    assert await fleet.run(first, "verify") == "no_tool_call 1.0 (group)"


async def test_a_backend_that_never_answers_holds_no_grading_up(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_GRACE_S", 0.1)
    fleet.shelf.never_answers = True
    job = job_of(fleet, model, limits={"setup_timeout_s": 0.2})
    assert await fleet.run(job, "agent") == "no_tool_call 1.0 (group)"
    assert "agent" in fleet.record(job).stage_seconds
    fleet.shelf.never_answers = False


async def test_a_copy_whose_end_never_comes_is_given_up(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_GRACE_S", 0.1)
    monkeypatch.setattr(copies, "DROP_S", 0.1)
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    fleet.shelf.never_answers = True
    assert await fleet.run(job, "verify") == "no_tool_call 1.0 (group)"
    fleet.shelf.never_answers = False


async def test_a_copy_that_is_never_restored_is_a_failed_attempt_on_the_same_work(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_GRACE_S", 0.1)
    job = job_of(fleet, model, limits={"setup_timeout_s": 0.2})
    assert await fleet.run(job, "agent") == "handed over"
    fleet.shelf.never_restores = True
    assert (await fleet.run(job, "verify")).startswith("retry: sandbox")
    fleet.shelf.never_restores = False
    assert fleet.fields(job)["lane"] == "train.verify"
    await fleet.run(job, "verify", attempt=2)
    assert outcome(fleet.record(job)) == GRADED
    assert model.sampled == [0, 1, 2, 3]


@pytest.mark.parametrize("passes", [True, False])
async def test_a_copy_that_cannot_be_restored_now_is_tried_once_more(
    fleet: Fleet, model: CountingModel, passes: bool
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    fleet.shelf.has_no_room = True
    assert (await fleet.run(job, "verify")).startswith("retry: sandbox")
    assert fleet.fields(job)["lane"] == "train.verify"
    fleet.shelf.has_no_room = not passes
    await fleet.run(job, "verify", attempt=2)
    if passes:
        assert outcome(fleet.record(job)) == GRADED
    else:
        assert fleet.fields(job)["lane"] == "train", "the agent begins anew"
    assert model.sampled == [0, 1, 2, 3]


async def test_restoring_takes_nothing_of_the_total_deadline(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, restore = [0.0], fleet.shelf.restore

    async def slow(*of: Any) -> None:
        await restore(*of)
        passed[0] = 1e6

    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    monkeypatch.setattr(fleet.shelf, "restore", slow)
    monotonic = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr("workers.clock.time", monotonic)
    assert await fleet.run(job, "verify") == "no_tool_call 1.0 (group)"


async def test_a_full_redis_holds_no_grading_up(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(fleet, model)
    client: Any = fleet.ledger.client
    snapshot = fleet.shelf.snapshot

    async def filling(*of: Any, **more: Any) -> Any:
        client.config_set("maxmemory", 1)
        return await snapshot(*of, **more)

    def emptied(snapshot_id: str) -> Any:
        client.config_set("maxmemory", 0)
        return Shelf.drop_snapshot(fleet.shelf, snapshot_id)

    monkeypatch.setattr(fleet.shelf, "snapshot", filling)
    monkeypatch.setattr(fleet.shelf, "drop_snapshot", emptied)
    assert await fleet.run(job, "agent") == "no_tool_call 1.0 (group)"
    assert fleet.kept() == (0, 0, 0)


@pytest.mark.parametrize("instance_id", ["secret", "other"])
async def test_a_secret_in_the_work_does_not_travel(
    fleet: Fleet, model: CountingModel, instance_id: str
) -> None:
    item = {"turns": TURNS, "instance_id": instance_id}
    job = job_of(fleet, model, env="steps_env:TAKING", item=item)
    verdict = await fleet.run(job, "agent")
    assert verdict == ("no_tool_call 1.0 (group)" if instance_id == "secret" else "handed over")


async def test_a_grader_whose_env_measures_no_work_gives_no_score(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(fleet, model, env="steps_env:TAKING")
    assert await fleet.run(job, "agent") == "handed over"
    monkeypatch.setattr(steps_env, "TAKING", steps_env.ENV)
    assert (await fleet.run(job, "verify")).startswith("retry: sandbox")
    assert fleet.fields(job)["lane"] == "train"


async def test_work_of_a_newer_worker_waits_for_a_newer_grader(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    with monkeypatch.context() as older:
        older.setattr(handed, "VERSION", 0)
        assert await fleet.run(job, "verify") == "refused: newer schema"
    fields = fleet.fields(job)
    assert (fields["lane"], fields["attempt"]) == ("train.verify", "1")
    assert await fleet.run(job, "verify") == "no_tool_call 1.0 (group)"
    assert model.sampled == [0, 1, 2, 3]


# --- deaths, and answers that were lost -------------------------------------------------------


async def test_work_outlives_its_graders(fleet: Fleet, model: CountingModel) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    await fleet.die(job, "verify", at="cat log")
    assert fleet.fields(job)["lane"] == "train.verify"
    await fleet.run(job, "verify")
    assert outcome(fleet.record(job)) == GRADED
    assert model.sampled == [0, 1, 2, 3]
    assert fleet.kept() == (0, 0, 0)


async def test_an_agents_worker_that_dies_costs_no_grader(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.die(job, "agent", at="echo 1")
    assert fleet.fields(job)["lane"] == "train"
    assert await fleet.run(job, "agent") == "handed over"
    await fleet.run(job, "verify")
    assert outcome(fleet.record(job)) == GRADED


async def test_a_job_that_kills_its_graders_is_quarantined_among_them(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    await fleet.die(job, "verify", at="cat log")
    await fleet.die(job, "verify", at="cat log")
    assert fleet.fields(job)["lane"] == "train.verify.quarantine"
    await fleet.run(job, "verify")
    assert outcome(fleet.record(job)) == GRADED


def hand_over_again(
    ledger: Ledger, job: TrajectoryJob, epoch: int, token: str, owner: str = "w1"
) -> str:
    call = hand_over(
        Claim(job.trajectory_id, epoch),
        b"work",
        owner=owner,
        lane="train",
        handover=token,
        snapshot_id="copy",
        only_host="",
        most=10,
        ttl_s=600,
        used_s=1.0,
        spent=Spent(5),
    )
    return ledger.make(call)


def test_a_hand_over_whose_answer_was_lost_is_repeated_until_the_end(ledger: Ledger) -> None:
    note_graders(ledger, ["train"], host="g", ttl_s=60)
    job = make_job()
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    assert hand_over_again(ledger, job, epoch, "one") == "ok"
    assert hand_over_again(ledger, job, epoch, "one") == "ok"
    taken = begin(ledger, job, owner="w2")
    assert (taken.verdict, taken.handed) == ("run", "one")
    assert hand_over_again(ledger, job, epoch, "one") == "ok"
    assert hand_over_again(ledger, job, epoch, "two") == "stale"
    assert hand_over_again(ledger, job, taken.epoch, "two", "w2") == "stale", "it is graded now"
    assert ledger.client.get(f"hq:handover:{job.trajectory_id}") == b"work"
    assert ledger.client.hget("hq:totals", "tokens") == b"5"


def test_a_malformed_field_does_not_lose_what_is_handed_over(ledger: Ledger) -> None:
    note_graders(ledger, ["train"], host="g", ttl_s=60)
    job = make_job()
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "used", "junk")
    assert hand_over_again(ledger, job, epoch, "one") == "ok"
    assert ledger.client.zscore("hq:delayed", job.trajectory_id) is not None


def test_who_has_lost_the_lease_hands_nothing_over(ledger: Ledger) -> None:
    note_graders(ledger, ["train"], host="g", ttl_s=60)
    job = make_job()
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    ledger.requeue(Claim(job.trajectory_id, epoch), owner="w1")
    begin(ledger, job, owner="w2")
    assert hand_over_again(ledger, job, epoch, "one") == "stale"
    assert not ledger.client.exists(f"hq:handover:{job.trajectory_id}", "hq:handed")


@pytest.mark.parametrize("what", ["work", "files", "token"])
async def test_an_agent_whose_work_is_lost_begins_anew_and_is_graded_where_it_works(
    fleet: Fleet, model: CountingModel, what: str
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    if what == "work":
        fleet.ledger.client.delete(f"hq:handover:{job.trajectory_id}")
    elif what == "files":
        fleet.shelf.kept.clear()
    else:
        fleet.ledger.client.hset(f"hq:traj:{job.trajectory_id}", "handed", "another")
    assert (await fleet.run(job, "verify")).startswith("retry: sandbox")
    fields = fleet.fields(job)
    assert (fields["lane"], fields["attempt"], fields.get("handed")) == ("train", "2", None)
    assert await fleet.run(job, "agent", attempt=2) == "no_tool_call 1.0 (group)"
    record = fleet.record(job)
    assert (outcome(record), record.attempt) == (GRADED, 2)
    [lost] = record.attempts
    assert lost.failure.type == "WorkLost"
    assert bool(lost.usage.completion_tokens) == (what == "files"), "else nobody knows them"
    assert fleet.kept()[:2] == (0, 0)


async def test_an_item_that_killed_workers_needs_no_agent_while_it_waits(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    known = {"letter": "1-1", "trajectory_id": "another", "until": time.time() + 600}
    fleet.ledger.client.hset("hq:poison", item_hash(job), json.dumps(known))
    assert "to run alone" in await fleet.run(job, "verify")
    assert fleet.fields(job)["lane"] == "train.verify.quarantine"
    await fleet.run(job, "verify")
    assert outcome(fleet.record(job)) == GRADED
    assert model.sampled == [0, 1, 2, 3]


async def test_a_grader_with_another_version_of_the_env_leaves_it_to_a_new_attempt(
    fleet: Fleet, model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    monkeypatch.setattr(type(load_env("steps_env:ENV")), "version", "2")
    assert (await fleet.run(job, "verify")).startswith("retry: sandbox")
    assert fleet.fields(job)["lane"] == "train"


# --- what people do meanwhile -----------------------------------------------------------------


async def test_what_is_cancelled_while_it_waits_keeps_its_transcript(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    cancel(fleet.ledger, trajectories=[job.trajectory_id])
    await fleet.run(job, "verify")
    record = fleet.record(job)
    assert outcome(record) == ("cancelled", None)
    assert len(record.turns) == TURNS + 1
    assert fleet.kept() == (0, 0, 0)


async def test_a_run_that_is_cancelled_keeps_no_work(fleet: Fleet, model: CountingModel) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    Runs(fleet.ledger).cancel("run")
    assert fleet.kept()[:2] == (0, 0)
    assert await fleet.run(job, "verify") == "cancelled"


async def test_what_only_has_to_be_graded_is_graded_while_its_run_is_paused(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    Runs(fleet.ledger).pause("run", "to look at it")
    assert await fleet.run(job, "verify") == "no_tool_call 1.0 (group)"


async def test_a_copy_that_waits_to_be_graded_is_not_too_old(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    await fleet.run(job, "agent")
    name = job.trajectory_id
    assert snapshot_needs(fleet.ledger, [name])[name].is_handed
    assert await delete_unneeded(fleet.shelf, fleet.ledger, ttl_s=1.0) == 0
    await fleet.run(job, "verify")
    assert not snapshot_needs(fleet.ledger, [name])[name].snapshot_id


# --- graders that are missing -----------------------------------------------------------------


def test_graders_that_died_before_the_clock_was_set_back_are_known_no_longer(
    ledger: Ledger,
) -> None:
    take_back = swept(ledger)
    job = make_job()
    enqueue(ledger, job)
    note_lanes(ledger, ["train"])
    seconds, _ = cast(Any, ledger.client.time())
    ledger.client.zadd("hq:graders:train", {"g": seconds + 3600})
    ledger.client.set("hq:sweep:last", f"{seconds + 3600}.0")
    take_back()
    epoch = begin(ledger, job).epoch
    assert hand_over_again(ledger, job, epoch, "one") == "nobody"


async def test_work_waits_for_somebody_until_it_has_a_grader(
    fleet: Fleet, model: CountingModel
) -> None:
    lanes = lanes_with_quarantine("train.verify")
    assert grading_of(fleet.ledger, "train", lanes).state == "graded"
    await fleet.run(job_of(fleet, model), "agent")
    fleet.ledger.client.zadd("hq:graders:train", {socket.gethostname(): 1})
    assert grading_of(fleet.ledger, "train", lanes).state == "idle", "it is not due yet"
    fleet.ledger.due()
    assert grading_of(fleet.ledger, "train", lanes) == ("waits", {socket.gethostname()})
    fleet.graders()
    assert grading_of(fleet.ledger, "train", lanes).state == "graded"


async def test_an_agents_worker_grades_what_another_one_has_handed_over(
    fleet: Fleet, model: CountingModel
) -> None:
    job = job_of(fleet, model)
    assert await fleet.run(job, "agent") == "handed over"
    assert await fleet.run(job, "agent") == "no_tool_call 1.0 (group)"
    assert model.sampled == [0, 1, 2, 3]
    assert fleet.kept() == (0, 0, 0)


def test_who_has_no_copies_of_slots_leaves_the_grading_to_workers_that_do(fleet: Fleet) -> None:
    watch = GradersWatch(fleet.runtime("agent"), fleet.ledger)
    own, another = frozenset({socket.gethostname()}), frozenset({"another"})
    assert watch._has_copies("train", another), "nobody lives there"
    facts = {"owner": "w9", "host": "another", "lanes": ["train"], "intake": "open"}
    fleet.ledger.beat("w9", facts, ttl_s=60.0)
    assert not watch._has_copies("train", another)
    fleet.ledger.beat("w9", facts | {"intake": "paused"}, ttl_s=60.0)
    assert watch._has_copies("train", another)
    assert watch._has_copies("train", own)
