"""What enqueueing costs: commands, round trips and bytes of Redis; the work is per row."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis
from records import make_job

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import TrajectoryJob
from hermes_queue.settings import ProducerSettings

pytestmark = pytest.mark.parametrize("ledger", ["redis-7"], indirect=True)

JOBS, GROUP_SIZE = 1000, 8
BATCHES = JOBS // ProducerSettings().batch
ROW = {"problem_statement": "something is wrong with it " * 100}


def jobs(run_id: str = "swe_smith-20260101-120000-abcd") -> Iterator[TrajectoryJob]:
    """`JOBS` jobs of one large row, as a producer makes them."""
    for group in range(JOBS // GROUP_SIZE):
        origin = {"producer": "producers.swe_smith", "version": "0.2.0", "git": "a" * 40}
        instance = f"oauthlib__oauthlib.1fd52536.func_basic__{group}"
        first = make_job(run_id, instance, 0, GROUP_SIZE, item=ROW, producer=origin)
        yield from (first.sample(index) for index in range(GROUP_SIZE))


@pytest.fixture
def warm(ledger: Ledger) -> Ledger:
    """A ledger whose scripts Redis knows."""
    enqueue([make_job("before")], ledger=ledger)
    ledger.client.config_resetstat()
    return ledger


def test_redis_has_few_commands_to_run_per_job(warm: Ledger) -> None:
    enqueue(jobs(), ledger=warm)
    stats = warm.client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    assert sum(calls.values()) < 4 * JOBS, calls
    assert calls["set"] == BATCHES, "the row is stored once per batch, not once per job"
    assert "publish" not in calls
    assert warm.client.zcard("hq:waiting") == JOBS + 1
    assert warm.client.zcard("hq:delayed") == 0


def test_a_batch_takes_six_round_trips(warm: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[object] = []
    send = redis.Connection.send_packed_command
    monkeypatch.setattr(
        redis.connection.AbstractConnection,
        "send_packed_command",
        lambda self, command, **more: trips.append(command) or send(self, command, **more),
    )
    enqueue(jobs(), ledger=warm)
    assert 0 < len(trips) <= 1 + 6 * BATCHES


def test_a_job_takes_less_than_two_kilobytes_of_redis(warm: Ledger) -> None:
    warm.client.flushdb()
    enqueue(jobs(), ledger=warm)
    with warm.client.pipeline(transaction=False) as pipe:
        for key in warm.client.keys("*"):
            pipe.memory_usage(key, samples=0)
        assert sum(pipe.execute()) / JOBS < 1950


def test_the_work_on_a_row_is_done_once_and_not_per_sample(
    warm: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    for name in ("encode_job", "encode_item"):
        real = getattr(codec, name)
        monkeypatch.setattr(
            codec,
            name,
            lambda value, name=name, real=real, **more: done.append(name) or real(value, **more),
        )
    enqueue(jobs(), ledger=warm)
    most = JOBS // GROUP_SIZE + BATCHES  # the end of a batch may be in the middle of a group
    assert done.count("encode_job") < most
    assert done.count("encode_item") < most


def test_each_sample_is_read_as_the_job_that_was_enqueued(warm: Ledger) -> None:
    agents = [{"kind": "tamper", "params": {"case": case}} for case in "abb"]
    sent = [make_job("r", "i", n, 3, agent=agent) for n, agent in enumerate(agents)]
    enqueue([*sent, sent[0]], ledger=warm)
    assert warm.run_status("r").total == 3
    for job in sent:
        begun = warm.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
        assert codec.decode_job(begun.job, job.trajectory_id) == job


def test_a_job_that_an_older_producer_stored_is_read_as_before(warm: Ledger) -> None:
    job = make_job("r", "i", 1, 2)
    enqueue([job], ledger=warm)
    warm.client.hset(f"hq:traj:{job.trajectory_id}", "job", codec.encode_job(job))
    begun = warm.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
    assert codec.decode_job(begun.job, job.trajectory_id) == job


def test_a_row_that_is_named_by_its_hash_is_stored_before_its_job(warm: Ledger) -> None:
    data = codec.encode_item(ROW)
    name = codec.item_sha256(ROW)
    job = make_job("named", item=None, item_sha256=name)
    enqueue([job], ledger=warm, items={name: codec.compress_item(data)})
    stored = warm.client.get(f"hq:item:{name}")
    assert codec.decompress_item(stored, sha256=name) == ROW
    assert warm.client.ttl(f"hq:item:{name}") > 0


def test_a_row_that_redis_has_lost_is_stored_with_the_next_batch_that_names_it(
    warm: Ledger,
) -> None:
    name = codec.item_sha256(ROW)
    named = make_job("named", size=8, item=None, item_sha256=name)
    packed = {name: codec.compress_item(codec.encode_item(ROW))}
    whole = make_job("whole", size=8, item=ROW)
    for first, items in ((named, packed), (whole, {})):
        lost: list[int] = []

        def lose(_: int, lost: list[int] = lost) -> None:
            if not lost:
                lost.append(warm.client.delete(f"hq:item:{name}"))

        jobs_of_group = [first.sample(index) for index in range(8)]
        few = ProducerSettings(batch=4)
        enqueue(jobs_of_group, ledger=warm, settings=few, items=items, on_batch=lose)
        assert lost == [1]
        assert warm.client.exists(f"hq:item:{name}")


def test_items_that_only_python_takes_for_equal_are_kept_apart(warm: Ledger) -> None:
    items = [{"x": 1}, {"x": True}, {"x": 1.0}]
    sent = [make_job("r", f"i{n}", item=item) for n, item in enumerate(items)]
    enqueue(sent, ledger=warm)
    stored = [warm.client.hget(f"hq:traj:{job.trajectory_id}", "job") for job in sent]
    assert [json.dumps(json.loads(each)["item"]) for each in stored] == [*map(json.dumps, items)]
