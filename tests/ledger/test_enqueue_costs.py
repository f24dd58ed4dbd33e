"""What enqueueing costs: commands, round trips and bytes of Redis; the work is per row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from records import make_job

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import TrajectoryJob

pytestmark = pytest.mark.parametrize("ledger", ["redis-7"], indirect=True)

JOBS, GROUP_SIZE = 1000, 8
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
    assert calls["set"] == 1, "the row is stored once, not once per batch"
    assert "publish" not in calls
    assert warm.client.zcard("hq:waiting") == JOBS + 1
    assert warm.client.zcard("hq:delayed") == 0


def test_a_thousand_jobs_take_a_dozen_round_trips(
    warm: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[object] = []
    send = redis.Connection.send_packed_command
    monkeypatch.setattr(
        redis.connection.AbstractConnection,
        "send_packed_command",
        lambda self, command, **more: trips.append(command) or send(self, command, **more),
    )
    enqueue(jobs(), ledger=warm)
    assert 0 < len(trips) <= 12


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
    batches = 2  # the end of one may be in the middle of a group
    assert done.count("encode_job") < JOBS // GROUP_SIZE + batches
    assert done.count("encode_item") <= batches


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
