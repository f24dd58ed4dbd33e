"""A finished record that the ledger does not know is kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
from records import make_job

from envs.base import Verdict
from hermes_queue.bodies import codec
from hermes_queue.errors import EnvBug, SandboxError, TrajectoryFailure
from hermes_queue.ledger import Claim, Ledger, Spent
from hermes_queue.models import AgentSpec, TrajectoryJob
from hermes_queue.telemetry.meter import PrometheusMeter
from workers.draft import Draft
from workers.outbox import Outbox
from workers.runtime import Runtime
from workers.spool import SUFFIX, Spool
from workers.upkeep.recovery import publish_leftovers


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def worker(ledger: Ledger, root: Path, owner: str) -> Runtime:
    spool = Spool(root, "d", owner)
    return Runtime(owner=owner, ledger=ledger, backend=cast(Any, None), spool=spool)


async def published(
    runtime: Runtime, draft: Draft, failure: TrajectoryFailure | None = None
) -> str:
    outbox = Outbox(runtime, Claim(draft.job.trajectory_id, 1))
    assert not await outbox.kept()
    await outbox.keep(draft, failure)
    assert await outbox.kept()
    return await outbox.publish()


async def test_a_score_that_redis_has_forgotten_is_set_aside_and_can_be_published_later(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, runtime = make_job(), worker(ledger, tmp_path, "first")
    runtime.meter = PrometheusMeter("worker", max_label_values=10)
    draft = Draft(job=job, attempt=1, epoch=1, verdict=Verdict(1.0))
    draft.agent.stop_reason = "submitted"
    answer = await published(runtime, draft)
    assert answer == "submitted 1.0 (unknown)"
    [kept] = [path for path in tmp_path.rglob("*") if path.suffix in (SUFFIX, ".unknown")]
    [logged] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert str(kept) in logged.getMessage()
    assert 'forgotten_total{what="record"} 1.0' in runtime.meter.exposition()[0].decode()
    runtime.spool.close()

    # What the message says to do.
    ledger.enqueue("run", [job], config={})
    kept.rename(kept.with_suffix(SUFFIX))
    later = worker(ledger, tmp_path, "later")
    assert publish_leftovers(later) == 1
    assert codec.decode_record(ledger.client.get(f"hq:body:{job.trajectory_id}")).score == 1.0


@pytest.mark.parametrize("failure", [None, SandboxError("gone")], ids=["measured", "failed"])
@pytest.mark.parametrize(
    "broken",
    [
        {"report": None},
        {"report": {1: "passed"}},
        {"report": {"deep": nested(600)}},
        {"report": {"number": 2**70}},
        {"version": 3},
        {"sampling": {"seed": 2**64}},
        {"sampling": {"text": "\ud800"}},
    ],
    ids=["none", "keys", "deep", "number", "version", "seed", "surrogate"],
)
async def test_an_attempt_whose_record_cannot_be_made_ends_all_the_same(
    ledger: Ledger, tmp_path: Path, broken: dict[str, Any], failure: SandboxError | None
) -> None:
    agent = AgentSpec.model_construct(kind="nop", sampling=broken.get("sampling", {}))
    job = make_job().model_copy(update={"agent": agent})
    ledger.enqueue("run", [make_job()], config={})
    ledger.begin(job.trajectory_id, 1, owner="me", lease_s=60.0, nonce="n")
    draft = Draft(job=job, attempt=1, epoch=1)
    draft.verdict = Verdict(1.0, report=broken.get("report", {}))
    draft.agent.stop_reason = "submitted"
    draft.env_version = broken.get("version", "1")
    runtime = worker(ledger, tmp_path, "me")
    answer = await published(runtime, draft, failure)
    assert answer.endswith("(group)")
    record = codec.decode_record(ledger.client.get(f"hq:body:{job.trajectory_id}"))
    assert record.agent.kind == "nop"
    if failure is None and "deep" in str(broken)[:30]:  # cut where it is too deep to be searched
        assert (record.score, "too deep" in str(record)) == (1.0, True)
        return
    assert record.score is None
    assert record.failure.cause == ("sandbox" if failure else "env_bug")
    assert record.failure.message.startswith("gone" if failure else "the record cannot be")


async def test_a_failure_that_redis_has_forgotten_is_forgotten(
    ledger: Ledger, tmp_path: Path
) -> None:
    job, runtime = make_job(), worker(ledger, tmp_path, "first")
    await published(runtime, Draft(job=job, attempt=1, epoch=1), EnvBug("x"))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (SUFFIX, ".unknown")]


def judged(job: TrajectoryJob, **rewards: float) -> Draft:
    draft = Draft(job=job, attempt=1, epoch=1, verdict=Verdict(1.0, rewards))
    draft.agent.stop_reason = "submitted"
    return draft


async def test_a_judges_answer_replaces_the_record_without_it_and_leaves_one_file(
    ledger: Ledger, tmp_path: Path
) -> None:
    job, runtime = make_job(), worker(ledger, tmp_path, "w")
    ledger.enqueue("run", [job], config={})
    outbox = Outbox(runtime, Claim(job.trajectory_id, 1))
    draft = judged(job)
    draft.is_provisional = True
    await outbox.keep(draft)
    assert len(list(tmp_path.rglob(f"*{SUFFIX}"))) == 1
    draft.is_provisional, draft.verdict = False, Verdict(1.0, {"judge": 0.25})
    draft.after_spent = Spent(7, 0.5)
    await outbox.keep(draft)
    [file] = tmp_path.rglob(f"*{SUFFIX}")
    assert codec.decode_record(file.read_bytes()).rewards == {"judge": 0.25}
    draft.verdict = Verdict(0.0)
    await outbox.keep(draft)
    await outbox.keep(draft, SandboxError("gone"))
    assert await outbox.publish() == "submitted 1.0 (group)"
    assert codec.decode_record(ledger.client.get(f"hq:body:{job.trajectory_id}")).score == 1.0
    assert list(tmp_path.rglob(f"*{SUFFIX}")) == []
    assert float(ledger.client.hget("hq:totals", "tokens")) == 7


async def test_what_fails_while_a_judge_thinks_does_not_replace_the_score(
    ledger: Ledger, tmp_path: Path
) -> None:
    job, runtime = make_job(), worker(ledger, tmp_path, "w")
    outbox = Outbox(runtime, Claim(job.trajectory_id, 1))
    draft = judged(job)
    draft.is_provisional = True
    await outbox.keep(draft)
    await outbox.keep(draft, SandboxError("gone"))
    [file] = tmp_path.rglob(f"*{SUFFIX}")
    assert codec.decode_record(file.read_bytes()).score == 1.0


async def test_a_judges_answer_that_the_disk_does_not_take_is_published_from_memory(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, runtime = make_job(), worker(ledger, tmp_path, "w")
    ledger.enqueue("run", [job], config={})
    outbox = Outbox(runtime, Claim(job.trajectory_id, 1))
    draft = judged(job)
    draft.is_provisional = True
    await outbox.keep(draft)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(runtime.spool, "put_all", lambda records: [full for _ in records])
    draft.is_provisional, draft.verdict = False, Verdict(1.0, {"judge": 0.25})
    await outbox.keep(draft)
    await outbox.publish()
    body = ledger.client.get(f"hq:body:{job.trajectory_id}")
    assert codec.decode_record(body).rewards == {"judge": 0.25}
    assert runtime.spool.count() == 0


async def test_a_judge_is_paid_for_by_whoever_publishes_the_record(
    ledger: Ledger, tmp_path: Path
) -> None:
    """The worker that had asked it is dead, and only the record says what it cost."""
    job, runtime = make_job(), worker(ledger, tmp_path, "dead")
    ledger.enqueue("run", [job], config={})
    draft = judged(job, judge=0.5)
    report = {"judge": {"score": 0.5, "prompt_tokens": 40, "completion_tokens": 2}}
    draft.verdict, draft.after_spent = Verdict(1.0, {"judge": 0.5}, report), Spent(0, 0.25)
    await Outbox(runtime, Claim(job.trajectory_id, 1)).keep(draft)
    runtime.spool.close()
    assert publish_leftovers(worker(ledger, tmp_path, "next")) == 1
    totals = ledger.client.hgetall("hq:totals")
    assert (float(totals[b"tokens"]), float(totals[b"cost_usd"])) == (42, 0.25)
