"""The life of a trajectory in Redis, one behaviour each."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
import tracemalloc

import pytest
import zstandard
from ledger_steps import LEASE, SWEEP, age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, EnvBug, RedisFull
from hermes_queue.ledger import Claim, Ledger
from hermes_queue.ledger.attempts import unpacked
from hermes_queue.ledger.group_facts import stand_in_job
from hermes_queue.ledger.items import get_item, put_items
from hermes_queue.models import AttemptRecord, Failure, Message
from hermes_queue.results.stored import StoredGroup, stored_group


def test_a_job_is_claimed_once_per_run(ledger):
    job = make_job()
    assert enqueue(ledger, job) == [job]
    assert enqueue(ledger, job) == []
    assert ledger.run_status("run").total == 1


def test_a_producer_that_died_before_publishing_leaves_the_job_to_the_mover(ledger):
    job = make_job(lane="eval", priority=2)
    ledger.enqueue("run", [job], config={})
    ledger.client.zadd("hq:delayed", {job.trajectory_id: time.time() - 1})
    claim, [due] = ledger.due()
    assert (due.trajectory_id, due.attempt, due.lane, due.priority) == (
        job.trajectory_id,
        1,
        "eval",
        2,
    )
    assert ledger.due()[1] == []  # claimed by this mover
    ledger.published([job.trajectory_id], claim=claim)
    assert ledger.client.zcard("hq:delayed") == 0


def test_confirming_an_old_claim_does_not_drop_a_newer_delay(ledger):
    job = make_job()
    ledger.enqueue("run", [job], config={})
    ledger.client.zadd("hq:delayed", {job.trajectory_id: time.time() - 1})
    claim, _ = ledger.due()
    ledger.client.zadd("hq:delayed", {job.trajectory_id: time.time() + 500})
    ledger.published([job.trajectory_id], claim=claim)
    assert ledger.client.zcard("hq:delayed") == 1


def test_begin_leases_the_job_and_returns_it(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    assert (begun.verdict, begun.epoch, begun.attempt, begun.deaths) == ("run", 1, 1, 0)
    assert codec.decode_job(begun.job, job.trajectory_id) == job
    assert ledger.run_status("run").running == 1


def test_a_second_delivery_of_a_running_job_is_busy(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    assert begin(ledger, job, owner="w2").verdict == "busy"
    assert begin(ledger, job).verdict == "busy"


def test_a_delivery_of_an_unknown_job_is_told_so(ledger):
    assert begin(ledger, make_job()).verdict == "unknown"


def test_a_live_owner_keeps_its_lease(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    sweep = swept(ledger)
    age_lease(ledger, job)
    assert ledger.renew([Claim(job.trajectory_id, begun.epoch)], **LEASE) == {}
    assert sweep() == []


def test_an_expired_lease_is_taken_back_and_counts_as_a_death(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    sweep = swept(ledger)
    age_lease(ledger, job)
    assert sweep() == [job.trajectory_id]
    assert [due.trajectory_id for due in ledger.due()[1]] == [job.trajectory_id]
    gone = ledger.renew([Claim(job.trajectory_id, begun.epoch)], **LEASE)
    assert gone == {Claim(job.trajectory_id, begun.epoch): "lost"}
    again = begin(ledger, job, owner="w2")
    assert (again.verdict, again.epoch, again.attempt) == ("run", 2, 1)
    assert ledger.client.hget(f"hq:traj:{job.trajectory_id}", "deaths") == b"1"


def test_after_an_outage_owners_get_time_to_renew_before_anything_is_taken(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    swept(ledger)
    age_lease(ledger, job)
    ledger.client.set("hq:sweep:last", time.time() - 3600)
    assert ledger.sweep(**SWEEP) == []
    assert ledger.client.zscore("hq:leases", job.trajectory_id) > time.time()


def test_two_sweepers_share_one_cadence(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    swept(ledger)
    age_lease(ledger, job)
    assert ledger.sweep(interval_s=30.0, gap_s=60.0, grace_s=5.0) == []


def test_a_retry_raises_the_attempt_and_keeps_the_evidence(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    failed = AttemptRecord(
        attempt=1,
        epoch=1,
        failure=Failure(cause="sandbox", stage="setup", type="SandboxError", message="gone\nnow"),
    )
    claim = Claim(job.trajectory_id, begun.epoch)
    assert ledger.requeue(claim, owner="w1", failed_attempt=failed)
    assert ledger.due()[1][0].attempt == 2
    assert begin(ledger, job, attempt=1).verdict == "stale_attempt"
    again = begin(ledger, job, attempt=2)
    assert (again.verdict, again.attempt) == ("run", 2)
    assert unpacked(again.attempts) == [failed]


def test_of_many_failed_attempts_the_newest_keep_their_transcripts(ledger, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_RETRY_EVIDENCE_TOTAL_BYTES", "2500")
    bounded = Ledger(ledger.client, prefix=ledger.prefix)
    job = make_job()
    enqueue(bounded, job)
    failure = Failure(cause="model", stage="agent", type="ModelError", message="503\tthen\nno more")
    for attempt in (1, 2, 3):
        claim = Claim(job.trajectory_id, begin(bounded, job, attempt=attempt).epoch)
        message = Message(role="user", content=f"{attempt} " + secrets.token_hex(900))
        failed = AttemptRecord(attempt=attempt, epoch=1, failure=failure, messages=(message,))
        assert bounded.requeue(claim, owner="w1", failed_attempt=failed)
    found = unpacked(begin(bounded, job, attempt=4).attempts)
    assert [record.failure for record in found] == [failure] * 3
    assert [record.messages for record in found[:2]] == [(), ()]
    assert found[2] == failed


def test_how_long_a_job_waited_counts_from_its_enqueueing_or_its_return(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    created = float(ledger.client.hget(f"hq:group:{job.group_id}", "created"))
    assert begun.queued_at == created
    assert created <= begun.begun_at
    assert ledger.requeue(Claim(job.trajectory_id, begun.epoch), owner="w1")
    again = begin(ledger, job, nonce="same")
    assert begun.begun_at <= again.queued_at <= again.begun_at
    assert begin(ledger, job, nonce="same").begun_at == again.begun_at
    take_back = swept(ledger)
    age_lease(ledger, job)
    assert take_back() == [job.trajectory_id]
    after_death = begin(ledger, job)
    assert again.begun_at <= after_death.queued_at <= after_death.begun_at


def test_a_group_tells_when_each_of_its_members_was_published(ledger):
    jobs = [make_job(sample=n, size=2) for n in range(2)]
    enqueue(ledger, *jobs)
    for job in reversed(jobs):
        publish(ledger, make_record(job, epoch=begin(ledger, job).epoch))
    [(_, fields)] = ledger.client.xrange("hq:results")
    stored = stored_group(ledger.client, ledger.prefix, fields)
    first, second = stored.group().published
    assert second < first == stored.group().finished
    before = StoredGroup(
        {k: v for k, v in stored.fields.items() if k != "published"}, stored.bodies
    )
    assert before.group().published == ()


def test_a_hand_back_is_no_attempt_and_no_death(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    assert ledger.requeue(Claim(job.trajectory_id, begun.epoch), owner="w1")
    again = begin(ledger, job, owner="w2")
    assert (again.attempt, again.deaths) == (1, 0)
    assert ledger.run_status("run").running == 1


def test_a_job_given_back_by_a_former_owner_stays_with_the_current_one(ledger):
    job = make_job()
    enqueue(ledger, job)
    old = begin(ledger, job)
    sweep = swept(ledger)
    age_lease(ledger, job)
    sweep()
    begin(ledger, job, owner="w2")
    assert not ledger.requeue(Claim(job.trajectory_id, old.epoch), owner="w1")


def test_a_retry_with_a_delay_is_due_only_after_it(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    ledger.requeue(Claim(job.trajectory_id, begun.epoch), owner="w1", delay_s=3600)
    assert ledger.due()[1] == []


def test_publishing_is_final_and_happens_once(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    assert publish(ledger, make_record(job)) == "group"
    assert publish(ledger, make_record(job, 0.0)) == "final"
    assert begin(ledger, job).verdict == "final"
    status = ledger.run_status("run")
    assert (status.finished, status.running, status.done) == (1, 0, True)
    assert ledger.client.xlen("hq:results") == 1


def test_a_late_measurement_of_a_former_owner_wins(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    sweep = swept(ledger)
    age_lease(ledger, job)
    sweep()
    current = begin(ledger, job, owner="w2")
    assert publish(ledger, make_record(job, epoch=1), owner="w1") == "group"
    gone = ledger.renew([Claim(job.trajectory_id, current.epoch)], owner="w2", lease_s=30)
    assert gone == {Claim(job.trajectory_id, current.epoch): "final"}
    assert ledger.run_status("run").running == 0


def test_a_late_failure_of_a_former_owner_is_refused(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    sweep = swept(ledger)
    age_lease(ledger, job)
    sweep()
    begin(ledger, job, owner="w2")
    assert publish(ledger, make_record(job, None, epoch=1), owner="w1") == "stale"
    assert publish(ledger, make_record(job, None, epoch=2), owner="w2") == "group"


def test_a_group_is_published_with_its_last_member_in_sample_order(ledger):
    jobs = [make_job(sample=i, size=3) for i in range(3)]
    enqueue(ledger, *jobs)
    for job in reversed(jobs):
        begin(ledger, job)
    assert publish(ledger, make_record(jobs[2], 1.0)) == "ok"
    assert publish(ledger, make_record(jobs[0], 0.0)) == "ok"
    assert publish(ledger, make_record(jobs[1], None)) == "group"
    [(_, entry)] = ledger.client.xrange("hq:results")
    fields = {key.decode(): value.decode() for key, value in entry.items()}
    assert json.loads(fields["members"]) == [job.trajectory_id for job in jobs]
    assert (fields["size"], fields["complete"]) == ("3", "0")
    assert (float(fields["mean"]), float(fields["std"])) == (0.5, 0.5)


def test_a_group_without_any_measurement_has_no_mean(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, make_record(job, None))
    [(_, entry)] = ledger.client.xrange("hq:results")
    assert (entry[b"mean"], entry[b"complete"]) == (b"", b"0")


def test_a_record_of_a_forgotten_trajectory_is_not_published(ledger):
    assert publish(ledger, make_record(make_job())) == "unknown"
    assert ledger.client.xlen("hq:results") == 0


def test_finished_state_expires_and_nothing_unlisted_stays(ledger):
    jobs = [make_job(sample=i, size=2) for i in range(2)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish(ledger, make_record(job))
    lasting = {
        key.decode()
        for key in ledger.client.scan_iter("*")
        if ledger.client.ttl(key) == -1 and not key.startswith(b"hq:body:")
    }
    assert lasting <= {
        "hq:results",
        "hq:results:bytes",
        "hq:leases",
        "hq:delayed",
        "hq:waiting",
        "hq:totals",
        "hq:sched:running",
    }


def test_items_travel_once_and_come_back(ledger):
    row = {"text": "x" * 4000}
    data = codec.encode_item(row)
    sha256 = hashlib.sha256(data).hexdigest()
    put_items(ledger, {sha256: codec.compress_item(data)})
    assert get_item(ledger, sha256) == row
    assert get_item(ledger, "missing") is None


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (codec.compress_item(b" " * (64 << 20)), "unpacks to 67108864 bytes"),
        (b"\0" * (8 << 20), "packed into more than"),
        (codec.compress_item(codec.encode_item({"text": "another"})), "another hash"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"), "say its size"),
        (b"nothing of ours", "not an item"),
    ],
    ids=["bomb", "large", "forged", "of-unknown-size", "noise"],
)
def test_an_item_that_is_not_the_row_of_its_hash_is_refused_unread(ledger, stored, expected):
    sha256 = hashlib.sha256(b"{}").hexdigest()
    put_items(ledger, {sha256: stored})
    tracemalloc.start()
    try:
        with pytest.raises(EnvBug, match=expected):
            get_item(ledger, sha256)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_job_that_cannot_be_read_is_known_by_its_ids_and_its_group(ledger):
    job = make_job(size=4)
    enqueue(ledger, job)
    stand_in = stand_in_job(ledger, job.trajectory_id)
    assert (stand_in.run_id, stand_in.group_size, stand_in.env) == ("run", 4, "gsm8k")


def test_a_begin_whose_answer_was_lost_may_be_repeated(ledger):
    job = make_job()
    enqueue(ledger, job)
    first = begin(ledger, job, nonce="n")
    assert begin(ledger, job, nonce="n") == first
    assert begin(ledger, job, nonce="other").verdict == "busy"
    assert ledger.run_status("run").running == 1


def reconcile(ledger, lane="train", *, age_s=0.0):
    return ledger.reconcile(lane, age_s=age_s)


def test_a_job_that_nobody_could_take_is_queued_again(ledger):
    """An older version has enqueued it, or somebody has deleted a key."""
    job = make_job()
    enqueue(ledger, job)
    assert reconcile(ledger) == []
    ledger.client.delete("hq:sched:jobs:train||run|gsm8k")
    assert reconcile(ledger, age_s=60) == []
    assert reconcile(ledger) == [job.trajectory_id]
    assert [due.trajectory_id for due in ledger.due()[1]] == [job.trajectory_id]
    assert ledger.client.zcard("hq:sched:jobs:train||run|gsm8k") == 1


def test_young_jobs_other_lanes_and_running_jobs_are_not_queued_again(ledger):
    running, other = make_job(instance="a"), make_job(instance="b", lane="eval")
    enqueue(ledger, running, other)
    assert reconcile(ledger, age_s=60) == []
    begin(ledger, running)
    assert reconcile(ledger) == []


def test_the_time_that_attempts_have_used_adds_up(ledger):
    job = make_job()
    enqueue(ledger, job)
    for used in (1.5, 2.0):
        begun = begin(ledger, job)
        ledger.requeue(Claim(job.trajectory_id, begun.epoch), owner="w1", used_s=used)
    assert begin(ledger, job).used_s == 3.5


def test_a_group_keeps_its_size(ledger):
    enqueue(ledger, make_job(size=2))
    with pytest.raises(ConfigurationError, match="another group size"):
        enqueue(ledger, make_job(sample=1, size=4))
    assert ledger.run_status("run").total == 1


def test_after_an_outage_leases_about_to_expire_get_the_grace_too(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job, lease_s=0.5)
    ledger.sweep(interval_s=0.0, gap_s=60.0, grace_s=30.0)
    assert ledger.client.zscore("hq:leases", job.trajectory_id) > time.time() + 10


def test_a_run_that_was_purged_gets_no_counters_without_expiry(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    ledger.client.delete("hq:run:run")
    publish(ledger, make_record(job))
    assert not ledger.client.exists("hq:run:run")


def test_a_full_redis_refuses_and_loses_nothing(server):
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        client.config_set("maxmemory", 1)
        with pytest.raises(RedisFull, match="maxmemory"):
            ledger.enqueue("run", [make_job()], config={})
        client.config_set("maxmemory", 0)
        assert enqueue(ledger, make_job()) == [make_job()]


def test_the_deployment_is_known_to_a_worker_that_starts_while_redis_is_full(server):
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        known = ledger.deployment_id()
        client.config_set("maxmemory", 1)
        assert ledger.deployment_id() == known
