"""Workers with Modal sandboxes: whole runs, killed, and out of quota."""

from __future__ import annotations

import asyncio
import json
import os

import modal
import pytest
from modal_server import localmodal, localmodal_server
from worker_process import wait_until
from zygote import run_forked

from hermes_queue.ledger.fleet.sandboxes import Sandboxes

__all__ = ["localmodal", "localmodal_server"]

pytestmark = pytest.mark.fleet

QUICK = {
    "HERMES_QUEUE_SANDBOX_BACKEND": "modal",
    "HERMES_QUEUE_SANDBOX_REAP_S": "1",
    "HERMES_QUEUE_SANDBOX_REAP_GRACE_S": "1",
    "HERMES_QUEUE_MODAL_CREATES_PER_S": "100",
}


def produce(cwd, *flags, tasks="swe_smith", **environment):
    """Run a producer, by default that of the main job, to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    done = run_forked(
        *(f"producers.{tasks}", "--items", "1", *flags),
        environment={**clean, **environment},
        directory=cwd,
        timeout_s=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    """Where the rows' set-ups are noted, so that they are built once for all tests."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("tasks", "agent", "score"),
    [
        ("gsm8k", "oracle", 1.0),
        # An image and the dependencies of a row are built in sandboxes, for half a minute.
        pytest.param("swe_smith", "oracle", 1.0, marks=pytest.mark.exhaustive),
        pytest.param("swe_smith", "nop", 0.0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_whole_job_is_scored_and_leaves_no_sandbox(
    localmodal, snapshots, tmp_path, tasks, agent, score
):
    flags = ("--sandbox", "modal", "--agent", agent, "--out", "out.jsonl")
    produce(tmp_path, *flags, tasks=tasks, HERMES_QUEUE_PATHS_CACHE=snapshots)
    [record] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert record["score"] == score
    assert record["provenance"]["sandbox_id"]
    assert localmodal.running() == []


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_the_main_job_is_finished_by_another_worker_when_one_is_killed(
    localmodal, redis_server, factory, ledger, start_worker, snapshots, tmp_path
):
    options = {**QUICK, "HERMES_QUEUE_PATHS_CACHE": snapshots}
    doomed = start_worker(concurrency=2, **options)
    flags = ("--group-size", "2", "--run-id", "run")
    produce(tmp_path, *flags, HERMES_QUEUE_REDIS_URL=redis_server.url)
    old = wait_until(
        "slots", lambda: {r.sandbox_id for r in Sandboxes(ledger).all() if r.slots}, timeout_s=180
    )
    doomed.kill9()
    heir = start_worker(concurrency=2, **options)
    records = factory.wait_done(timeout_s=180)
    assert [record.score for record in records] == [1.0] * 2, [record.failure for record in records]
    assert any(record.epoch > 1 for record in records)
    assert not old & {record.provenance.sandbox_id for record in records if record.epoch > 1}
    wait_until("sandboxes ended", lambda: not old & set(localmodal.running()))
    assert heir.terminate() == 0, heir.log()
    assert localmodal.running() == []
    assert Sandboxes(ledger).all() == []


@pytest.mark.timeout(400)
def test_a_killed_workers_sandboxes_end_and_its_jobs_are_done_by_another(
    localmodal, factory, ledger, start_worker
):
    doomed = start_worker(concurrency=2, **QUICK)
    factory.enqueue(2, seconds=6)
    factory.wait_running(2)
    old = wait_until("slots", lambda: {r.sandbox_id for r in Sandboxes(ledger).all() if r.slots})
    assert old == set(localmodal.running())
    doomed.kill9()
    heir = start_worker(concurrency=2, **QUICK)
    records = factory.wait_done()
    assert all(record.score is not None for record in records)
    wait_until("sandboxes ended", lambda: not old & set(localmodal.running()))
    assert heir.terminate() == 0, heir.log()
    assert localmodal.running() == []
    assert Sandboxes(ledger).all() == []


@pytest.mark.timeout(400)
def test_a_job_that_modal_has_no_room_for_is_handed_back_and_uses_no_attempt(
    localmodal, factory, start_worker
):
    for call in ("SandboxCreate", "SandboxCreateV2"):  # by version of the SDK
        localmodal.faults.inject(call, status="RESOURCE_EXHAUSTED", count=2)
    worker = start_worker(concurrency=1, HERMES_QUEUE_MODAL_PATIENCE_S="0", **QUICK)
    factory.enqueue(1, seconds=0)
    [record] = factory.wait_done()
    assert (record.attempt, record.attempts) == (1, ())
    assert record.score is not None
    worker.wait_for_log("handed back", times=2)


@pytest.mark.timeout(400)
def test_a_job_whose_sandbox_ends_in_the_agents_turn_runs_again_in_another(
    localmodal, factory, ledger, start_worker
):
    start_worker(concurrency=1, HERMES_QUEUE_RETRY_BACKOFF_S="0.1", **QUICK)
    factory.enqueue(1, seconds=10)
    [lost] = wait_until("a slot", lambda: [r for r in Sandboxes(ledger).all() if r.slots])
    asyncio.run(end(lost.sandbox_id))
    [record] = factory.wait_done()
    assert record.score is not None
    assert [attempt.failure.cause for attempt in record.attempts] == ["sandbox"]
    assert record.provenance.sandbox_id != lost.sandbox_id


@pytest.mark.timeout(400)
def test_a_sandbox_that_was_never_recorded_ends_and_another_deployments_does_not(
    localmodal, ledger, start_worker
):
    labels = {"worker": "killed-between-creation-and-record"}
    ours = asyncio.run(begin(deployment=ledger.deployment_id(), **labels))
    theirs = asyncio.run(begin(deployment="another", **labels))
    start_worker(concurrency=1, **QUICK)
    wait_until("it has ended", lambda: ours not in localmodal.running())
    assert theirs in localmodal.running()


async def end(sandbox_id):
    """As Modal does at the end of a sandbox's lifetime, for all that a client sees."""
    sandbox = await modal.Sandbox.from_id.aio(sandbox_id)
    await sandbox.terminate.aio()


async def begin(**tags):
    """A sandbox in the workers' app; its id."""
    app = await modal.App.lookup.aio("hermes-queue", create_if_missing=True)
    image = modal.Image.debian_slim()
    return (await modal.Sandbox.create.aio(app=app, image=image, tags=tags)).object_id
