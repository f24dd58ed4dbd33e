"""A producer that follows its run ends when all has come, or when the rest cannot come any more."""

from __future__ import annotations

import asyncio
import threading

import pytest
from records import make_job, make_record
from redis_server import RedisServer

import hermes_queue
from hermes_queue.bodies import codec
from hermes_queue.bodies.store import ObjectStore
from hermes_queue.ledger import Ledger, RunStatus
from hermes_queue.results.consumers import has_dealt_with, newest_entry
from hermes_queue.settings import StoreSettings
from producers.run import follow
from producers.run.follow import Follower
from producers.run.progress import Progress
from workers.bodies import Bodies

LOOKS = 4
"""How often a follower looks at the run before what is in its way is taken out of it."""


@pytest.fixture
def ledger(redis_server: RedisServer):
    with redis_server.client(decode_responses=False) as client:
        yield Ledger(client, prefix="hq:", url=redis_server.url)


@pytest.fixture(autouse=True)
def long_run(monkeypatch):
    """The last group came longer ago than a follower has patience, as at the end of slow jobs."""
    monkeypatch.setattr(follow, "QUIET_END_S", 0.0)
    monkeypatch.setattr(follow, "POLL_S", 0.01)


class Looks(Progress):
    """Sets `enough` once the follower has looked at a run that has ended `LOOKS` times."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.count = 0
        self.enough = threading.Event()

    def show(self, _: RunStatus) -> None:
        self.count += 1
        if self.count == LOOKS:
            self.enough.set()


class SlowSink:
    """Has a record on disk only after the follower has looked often enough."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self.held: list[str] = []

    def write(self, trajectories) -> int:
        assert self._looks.enough.wait(60)
        self.held += [each.trajectory_id for each in trajectories]
        return 1

    def close(self) -> None:
        pass


def publish(ledger: Ledger, *instances: str, bodies: Bodies | None = None) -> list[str]:
    jobs = [make_job(instance=instance) for instance in instances]
    for job in ledger.enqueue(jobs[0].run_id, jobs, config={}):
        ledger.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
        record = make_record(job)
        body = codec.encode_record(record)
        (bodies or Bodies(None, StoreSettings(), 8 << 20)).publish_found(
            ledger, record, body, owner="w", finished_ttl_s=60
        )
    return [job.group_id for job in jobs]


def follower(ledger: Ledger, groups: list[str], looks: Looks, sink=None) -> Follower:
    run_id = make_job().run_id
    return Follower(
        *(ledger, run_id, groups),
        **{"lane": "train", "sink": sink, "progress": looks, "check": lambda: None},
    )


async def test_a_group_whose_records_are_just_being_written_is_not_given_up(ledger):
    looks = Looks()
    sink = SlowSink(looks)
    following = follower(ledger, publish(ledger, "a", "b"), looks, sink)
    await asyncio.wait_for(following.run(), 60)
    assert (following.pending, len(sink.held)) == (set(), 2)


async def test_a_group_that_waits_for_the_object_store_is_not_given_up(ledger, tmp_path):
    directory = tmp_path / "store"
    bodies = Bodies(ObjectStore(directory.as_uri()), StoreSettings(from_bytes=1024), 1)
    groups = publish(ledger, "a", bodies=bodies)
    hidden = directory.rename(tmp_path / "hidden")
    directory.write_text("not a directory")
    looks = Looks()

    def comes_back() -> None:
        assert looks.enough.wait(60)
        directory.unlink()
        hidden.rename(directory)

    following = follower(ledger, groups, looks)
    await asyncio.gather(asyncio.wait_for(following.run(), 60), asyncio.to_thread(comes_back))
    assert following.pending == set()
    assert len(following.rows) == 1


async def test_what_is_not_in_the_stream_any_more_is_given_up(ledger):
    groups = publish(ledger, "a", "b")
    ledger.client.xdel("hq:results", ledger.client.xrange("hq:results")[0][0])
    following = follower(ledger, groups, Looks())
    await asyncio.wait_for(following.run(), 60)
    assert following.pending == {groups[0]}
    assert len(following.rows) == 1


async def test_what_became_a_dead_letter_is_given_up(ledger):
    groups = publish(ledger, "a", "b")
    for name in ledger.client.keys("hq:body:*"):
        ledger.client.delete(name)
    following = follower(ledger, groups, Looks())
    await asyncio.wait_for(following.run(), 60)
    assert following.pending == set(groups)


async def test_a_consumer_group_has_dealt_with_what_it_acknowledged(ledger, redis_server):
    assert newest_entry(ledger) == (0, 0)
    assert not has_dealt_with(ledger, "t", (0, 0))
    publish(ledger, "a", "b")
    newest = newest_entry(ledger)
    answers = []
    async for group in hermes_queue.consume("t", url=redis_server.url, idle_timeout_s=0.2):
        answers.append(has_dealt_with(ledger, "t", newest))
        await group.ack()
    assert (answers, has_dealt_with(ledger, "t", newest)) == ([False, False], True)
    publish(ledger, "c")
    assert has_dealt_with(ledger, "t", newest)
    assert not has_dealt_with(ledger, "t", newest_entry(ledger))
