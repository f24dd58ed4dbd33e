"""Calls that travel together: one round trip, and each ends as it would have ended alone."""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace

import pytest
import redis
from records import make_job, make_record
from redis_server import RedisServer, redis_binary_of
from worker_process import wait_until

from hermes_queue.bodies import codec
from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.keyspace.calls import PIPELINE_BYTES, STAGED_FROM_BYTES, Confirmation, ScriptCall
from hermes_queue.ledger import Claim, Ledger, transitions
from hermes_queue.settings import ResultSettings, RetrySettings

RESULTS = ResultSettings()
AT_ONCE = ("--repl-diskless-sync-delay", "0")


def begin(job, nonce="n"):
    name = job.trajectory_id
    lease = {"owner": "w1", "lease_s": 30.0, "nonce": nonce}
    return transitions.begin(name, 1, results=RESULTS, **lease)


def publish(job, results=RESULTS, **fields):
    record = make_record(job).model_copy(update=fields)
    return transitions.publish(
        record, codec.encode_record(record), owner="w1", finished_ttl_s=60, results=results
    )


def large(job, **fields):
    report = {"output": secrets.token_hex(STAGED_FROM_BYTES)}
    return publish(job, **({"report": report} | fields))


def staged(ledger: Ledger):
    return list(ledger.client.scan_iter(ledger.key("staged:*")))


def jobs_of(ledger: Ledger, count: int):
    jobs = [make_job(instance=f"i{n}") for n in range(count)]
    ledger.enqueue("run", jobs, config={})
    return jobs


@pytest.fixture
def round_trips(monkeypatch):
    """Grows with each request to Redis."""
    sent = []
    for kind in (redis.client.Pipeline, redis.Redis):
        name = "execute" if kind is redis.client.Pipeline else "execute_command"
        original = getattr(kind, name)

        def counted(self, *args, original=original, **options):
            if not (isinstance(self, redis.client.Pipeline) and args):  # which only queues it
                sent.append(args[:1])
            return original(self, *args, **options)

        monkeypatch.setattr(kind, name, counted)
    return sent


def test_what_is_ready_in_the_same_moment_takes_one_round_trip(ledger: Ledger, round_trips):
    first, *jobs = jobs_of(ledger, 21)
    late = transitions.requeue(Claim("run.i.0", 1), owner="w1", retry=RetrySettings())
    ledger.make_all([begin(first), publish(first), late])  # Redis learns the scripts
    round_trips.clear()
    begun = ledger.make_all([begin(job) for job in jobs])
    assert [(each.verdict, each.epoch) for each in begun] == [("run", 1)] * 20
    decoded = [codec.decode_job(b.job, j.trajectory_id) for b, j in zip(begun, jobs, strict=True)]
    assert decoded == jobs
    again = ledger.make_all([begin(job) for job in jobs[:3]])
    other = ledger.make_all([begin(job, "another") for job in jobs[:3]])
    assert [each.epoch for each in again] == [1] * 3
    assert [each.verdict for each in other] == ["busy"] * 3
    given_back = transitions.requeue(
        Claim(jobs[0].trajectory_id, 1), owner="w1", retry=RetrySettings()
    )
    ends = ledger.make_all([given_back, *(publish(job) for job in jobs[1:])])
    assert ends == [True] + ["group"] * 19
    assert len(round_trips) == 4


def test_a_call_that_fails_does_not_concern_the_others(ledger: Ledger):
    first, second, third, fourth = jobs_of(ledger, 4)
    full = ResultSettings(soft_max_groups=1, hard_max_groups=1)
    unsendable = begin(third)
    unsendable = ScriptCall(unsendable.script, {**unsendable.given, "nonce": object()}, print)

    def unforeseen(verdict):
        raise ZeroDivisionError(verdict)

    ends = ledger.make_all(
        [
            ScriptCall.of("begin", print, trajectory="misspelt"),
            publish(first),
            publish(second, full),
            begin(third).then(unforeseen),
            unsendable,
            publish(third, epoch=0),
            begin(fourth),
        ]
    )
    assert [type(end) for end in ends[:1]] == [TypeError]
    assert ends[1] == "group"
    assert isinstance(ends[2], RedisFull)
    assert isinstance(ends[3], ZeroDivisionError)
    assert isinstance(ends[4], redis.DataError)
    assert isinstance(ends[5], redis.ResponseError)
    assert "epoch is 0" in str(ends[5])
    assert ends[6].verdict == "run"


def test_a_redis_that_has_forgotten_the_scripts_learns_them_again(ledger: Ledger):
    first, second = jobs_of(ledger, 2)
    assert ledger.make_all([begin(first)])[0].verdict == "run"
    ledger.client.script_flush()
    begun, ended = ledger.make_all([begin(second), publish(first)])
    assert (begun.verdict, ended) == ("run", "group")


def test_while_redis_is_away_each_call_says_so_and_may_be_repeated(server: RedisServer):
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        jobs = jobs_of(ledger, 3)
        calls_made = [begin(job) for job in jobs]
        server.stop()
        errors = ledger.make_all(calls_made)
        assert [type(each) for each in errors] == [RedisUnavailable] * 3
        assert len({id(each) for each in errors}) == 3
        server.start()
        assert [each.verdict for each in ledger.make_all(calls_made)] == ["run"] * 3


def test_small_calls_count_alike_and_large_ones_by_their_bodies():
    small = large = publish(make_job())
    assert 32 * small.weight == 32 * begin(make_job()).weight == PIPELINE_BYTES
    large = ScriptCall(large.script, {**large.given, "body": bytes(PIPELINE_BYTES)}, large.read)
    assert large.weight > PIPELINE_BYTES


def test_a_large_record_is_no_argument_of_its_script_and_is_stored_as_any_other(
    ledger: Ledger, round_trips
):
    small, job = jobs_of(ledger, 2)
    ledger.make_all([begin(small), begin(job), publish(small)])
    size = int(ledger.client.get(ledger.key("results:bytes")))
    round_trips.clear()
    call = large(job)
    assert call.given["body"] == b""
    assert ledger.make_all([call]) == ["group"]
    assert len(round_trips) == 1
    name = ledger.key(f"body:{job.trajectory_id}")
    assert (ledger.client.get(name), ledger.client.ttl(name)) == (call.staged, -1)
    assert int(ledger.client.get(ledger.key("results:bytes"))) == size + len(call.staged)
    assert staged(ledger) == []


def test_a_large_record_that_is_not_accepted_leaves_nothing_behind(ledger: Ledger):
    first, second, third = jobs_of(ledger, 3)
    ledger.make_all([begin(job) for job in (first, second, third)])
    impossible = large(third)
    impossible = replace(impossible, given={**impossible.given, "tokens": "-1"})
    calls = [
        large(first),
        large(first),
        large(second, results=ResultSettings(soft_max_groups=1, hard_max_groups=1)),
    ]
    *answers, full, refused = ledger.make_all([*calls, impossible])
    assert answers == ["group", "final"]
    assert isinstance(full, RedisFull)
    assert isinstance(refused, redis.ResponseError)
    assert staged(ledger) == []


def test_a_large_record_that_expired_before_its_script_ran_is_not_published(ledger: Ledger):
    [job] = jobs_of(ledger, 1)
    ledger.make_all([begin(job)])
    call = large(job)
    assert ledger.make_all([replace(call, staged=b"")]) == ["unstored"]
    assert ledger.client.exists(ledger.key(f"body:{job.trajectory_id}")) == 0
    assert ledger.make_all([call]) == ["group"]


def test_a_large_record_for_which_redis_has_no_room_is_not_published(server: RedisServer):
    with closing(Ledger.connect(url=server.url)) as ledger:
        [job] = jobs_of(ledger, 1)
        ledger.make_all([begin(job)])
        call = large(job)
        used = ledger.client.info("memory")["used_memory"]
        ledger.client.config_set("maxmemory", used - 1)
        [answer] = ledger.make_all([call])
        ledger.client.config_set("maxmemory", 0)
        assert isinstance(answer, RedisFull)
        assert ledger.make_all([call]) == ["group"]


def test_a_call_made_again_waits_for_replicas_to_have_what_the_first_one_wrote(tmp_path):
    master = RedisServer(redis_binary_of("redis-7"), tmp_path / "m", tcp=True, options=AT_ONCE)
    master.start()
    options = ("--replicaof", f"127.0.0.1 {master.port}")
    replica = RedisServer(redis_binary_of("redis-7"), tmp_path / "r", tcp=True, options=options)
    replica.start()
    try:
        with closing(Ledger.connect(url=master.url)) as ledger:
            [job] = jobs_of(ledger, 1)
            ledger.make(begin(job))
            wait_until("the replica has all", lambda: ledger.client.wait(1, 100) == 1)
            assert ledger.make(publish(job)) == "group"
            again = publish(job).confirmed(Confirmation(1, 5.0))
            assert ledger.make(again) == "final"
            # Redis 7.2 waits for what the connection itself has written, and for nothing else.
            with replica.client() as reader:
                assert "cmdstat_publish" in reader.info("commandstats")
            replica.kill9()
            with pytest.raises(RedisUnavailable, match="0 of 1 replicas"):
                ledger.make(publish(job).confirmed(Confirmation(1, 0.05)))
    finally:
        replica.close()
        master.close()
