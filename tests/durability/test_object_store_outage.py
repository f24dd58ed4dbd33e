"""Workers are killed and stores are away while large bodies are on their way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from spool_files import spooled
from worker_process import wait_until

import hermes_queue
from hermes_queue.bodies.store import is_claim

PATIENT = {"HERMES_QUEUE_LEASE_DURATION_S": "600"}
"""No job is run again because starting a worker takes long on a busy machine."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> dict[str, str]:
    return {
        "HERMES_QUEUE_STORE_URL": directory.as_uri(),
        "HERMES_QUEUE_STORE_FROM_BYTES": "1024",
        "HERMES_QUEUE_STORE_GRACE_S": "0.5",
        "HERMES_QUEUE_RESULTS_RETENTION_S": "0",
        "HERMES_QUEUE_RESULTS_TRIM_S": "0.2",
    }


def objects(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/[!.]*") if path.is_file())


def read(url: str, count: int) -> list[tuple[str, int]]:
    """(id, epoch) of the members of `count` groups, acknowledged."""

    async def members() -> list[tuple[str, int]]:
        found = []
        async for group in hermes_queue.consume("trainer", url=url):
            found += [(m.trajectory_id, m.epoch) for m in group.members]
            await group.ack()
            if len(found) == count:
                break
        return sorted(found)

    return asyncio.run(asyncio.wait_for(members(), 90))


@pytest.mark.fleet
def test_a_worker_killed_between_store_and_publication_loses_and_doubles_nothing(
    factory, ledger, start_worker, directory, store, tmp_path
):
    full = {f"HERMES_QUEUE_RESULTS_{each}_MAX_GROUPS": "1" for each in ("SOFT", "HARD")}
    store |= {**full, **PATIENT}
    store["HERMES_QUEUE_STORE_GRACE_S"] = "600"
    worker = start_worker(concurrency=2, **store)
    jobs = factory.enqueue(2, seconds=8)  # both run before one is published
    spool = tmp_path / "workers" / "spool"
    wait_until("both are stored", lambda: len(objects(directory)) == 2)
    wait_until("one is published", lambda: ledger.run_status("run").finished == 1)
    wait_until("the other waits on disk", lambda: len(spooled(spool)) == 1)
    stored = objects(directory)
    worker.kill9()
    start_worker(concurrency=1, **store)
    assert read(ledger.url, 2) == sorted((job.trajectory_id, 1) for job in jobs)
    assert objects(directory) == stored
    wait_until("the disk is free again", lambda: not spooled(spool))


def test_while_the_store_is_away_a_finished_record_waits_leased_on_disk(
    factory, ledger, start_worker, directory, store, tmp_path
):
    directory.write_text("in the way")
    worker = start_worker(concurrency=2, **store, **PATIENT)
    [job] = factory.enqueue(1, seconds=0)
    wait_until("it waits for the store", lambda: "object store" in worker.log())
    assert ledger.run_status("run").running == 1
    assert ledger.client.zscore("hq:leases", job.trajectory_id)
    assert len(spooled(tmp_path / "workers" / "spool")) == 1
    directory.unlink()
    assert read(ledger.url, 1) == [(job.trajectory_id, 1)]


def test_objects_go_when_their_results_are_trimmed(
    factory, ledger, start_worker, directory, store, tmp_path
):
    start_worker(concurrency=2, **store)
    factory.enqueue(2, seconds=0)
    wait_until("both are published", lambda: ledger.run_status("run").finished == 2)
    held = ledger.client.mget(ledger.client.keys("hq:body:*"))
    assert [is_claim(body) for body in held] == [True, True]
    seen = read(ledger.url, 2)
    wait_until("their objects are gone", lambda: not objects(directory))
    wait_until("nothing is to be deleted", lambda: not ledger.client.keys("hq:objects*"))
    kept = hermes_queue.replay(url=ledger.url, archive=tmp_path / "workers" / "archive")
    assert sorted((m.trajectory_id, m.epoch) for g in kept for m in g.members) == seen
