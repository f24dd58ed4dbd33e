"""A trajectory whose worker is killed goes on in another one, where it was."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import steps_env
from counting_model import CountingModel
from modal_server import ModalTestServer, localmodal, localmodal_server
from records import make_job
from worker_process import wait_until

from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.settings import PathSettings

__all__ = ["localmodal", "localmodal_server"]

TURNS = 10
SUPPORT = str(Path(__file__).parents[1] / "support")
OFTEN = {
    "HERMES_QUEUE_RESUME_SNAPSHOT_TURNS": "2",
    "PYTHONPATH": os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])),
}


@pytest.fixture
def model() -> Iterator[CountingModel]:
    """Replies within a third of a second."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    model = CountingModel(TURNS)

    async def slow(path: str) -> None:
        await asyncio.sleep(0.3 if path == "/v1/completions" else 0.0)

    model.gate = slow
    asyncio.run_coroutine_threadsafe(model.__aenter__(), loop).result(10)
    yield model
    asyncio.run_coroutine_threadsafe(closed(model), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def closed(model: CountingModel) -> None:
    """End it, and all of its connections."""
    await model.__aexit__()
    serving = asyncio.all_tasks() - {asyncio.current_task()}
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture
def job(ledger, model):
    """Samples its turns, with their tokens."""
    return enqueued(ledger, model.agent)


def enqueued(ledger, agent):
    job = make_job(env="steps_env:ENV", item={"turns": TURNS}, agent=agent)
    enqueue([job], ledger=ledger)
    return job


def wait_for_a_snapshot(ledger, job) -> None:
    key = f"hq:traj:{job.trajectory_id}"
    wait_until("a snapshot", lambda: ledger.client.hget(key, "snapshot"))


def images_with_files(server: ModalTestServer) -> list[str]:
    """Copies of directories that the Modal-compatible server has."""
    store = server._background.server.store
    return [name for name, image in list(store.images.items()) if image.files]


def wait_half_way(ledger, job, model) -> None:
    wait_for_a_snapshot(ledger, job)
    wait_until("turns after it", lambda: len(model.sampled) >= TURNS // 2)


def copies(ledger) -> set[str]:
    """Those of this test on this host; other runs of it share the directory."""
    found = set()
    for path in Path(PathSettings().cache, "snapshots").glob("*.json"):
        with suppress(FileNotFoundError):  # it was deleted in between
            if json.loads(path.read_text())["deployment"] == ledger.deployment_id():
                found.add(path.stem)
    return found


def check(record, ledger, left) -> int:
    """It is as if nothing had happened, but for one event; returns the number of kept turns.

    `left`: the copies that the first worker has left. One that it could not name any more stays for
    minutes, so that a living worker's is never taken for one.
    """
    assert (record.score, record.attempt, record.epoch) == (1.0, 1, 2)
    assert record.report["found"] == ["begin", *map(str, range(TURNS))]
    [event] = [each for each in record.events if each["event"] == "resumed"]
    assert event["turns"] >= 2
    assert not ledger.client.exists(f"hq:journal:{record.trajectory_id}")

    def are_deleted() -> bool:
        there = copies(ledger)
        return not there or there < left

    wait_until("the end of its copies", are_deleted)
    return event["turns"]


def check_tokens(record, model, kept) -> None:
    assert token_violations(record) == []
    assert len(record.sequences) == 1
    assert model.sampled.count(0) == 1, "the first turn was not sampled again"
    assert len(model.sampled) - len(set(model.sampled)) <= TURNS - kept


def test_a_killed_workers_trajectory_goes_on_where_its_files_can_be_restored(
    factory, ledger, start_worker
):
    job = enqueued(ledger, steps_env.played(TURNS, pause_s=0.3))
    doomed = start_worker(concurrency=1, **OFTEN)
    wait_for_a_snapshot(ledger, job)
    doomed.kill9()
    left = copies(ledger)
    start_worker(concurrency=1, **OFTEN)
    [record] = factory.wait_done()
    check(record, ledger, left)


@pytest.mark.exhaustive
def test_the_tokens_of_a_killed_workers_trajectory_are_exact(
    factory, ledger, start_worker, model, job
):
    doomed = start_worker(concurrency=2, **OFTEN)
    wait_half_way(ledger, job, model)
    doomed.kill9()
    left = copies(ledger)
    start_worker(concurrency=2, **OFTEN)
    [record] = factory.wait_done()
    check_tokens(record, model, check(record, ledger, left))


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may map a range of uids everywhere")
def test_on_modal_it_goes_on_in_a_sandbox_of_another_host(
    factory, ledger, start_worker, model, job, localmodal, tmp_path
):
    remote = {**OFTEN, "HERMES_QUEUE_SANDBOX_BACKEND": "modal"}
    doomed = start_worker(concurrency=2, HERMES_QUEUE_PATHS_CACHE=str(tmp_path / "1"), **remote)
    wait_half_way(ledger, job, model)
    doomed.kill9()
    left = copies(ledger)
    assert images_with_files(localmodal)
    start_worker(concurrency=2, HERMES_QUEUE_PATHS_CACHE=str(tmp_path / "2"), **remote)
    [record] = factory.wait_done()
    check_tokens(record, model, check(record, ledger, left))
    wait_until("the end of its copies", lambda: not images_with_files(localmodal))


@pytest.mark.exhaustive
def test_a_trajectory_that_is_handed_back_goes_on_and_its_tokens_are_booked_once(
    factory, ledger, start_worker, model, job
):
    leaving = start_worker(concurrency=2, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0", **OFTEN)
    wait_half_way(ledger, job, model)
    assert leaving.terminate() == 0, leaving.log()
    left = copies(ledger)
    start_worker(concurrency=2, **OFTEN)
    [record] = factory.wait_done()
    check_tokens(record, model, check(record, ledger, left))
    booked = float(ledger.client.hget("hq:totals", "tokens"))
    usage = record.usage
    lost = (len(model.sampled) - len(record.turns)) / len(record.turns)
    whole = usage.prompt_tokens + usage.completion_tokens
    assert whole <= booked < whole * (1 + lost) + 1000
