"""Messages in the broker against the ledger's idea of them."""

from __future__ import annotations

import time

from ledger_steps import begin, enqueue
from records import make_job

from hermes_queue.ledger import Claim
from hermes_queue.ledger.fleet.sandboxes import Sandboxes
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings


def reconcile(ledger):
    return ledger.reconcile("train", age_s=0.0)


def forget_place(ledger, job):
    """As if an older version had enqueued the job."""
    ledger.client.delete(f"hq:sched:jobs:{job.lane}||run|{job.env}")
    ledger.client.hdel(f"hq:traj:{job.trajectory_id}", "leaf")


def test_a_job_held_before_its_producer_confirms_stays_due(ledger):
    """Its message is used up: confirming must not take it for one that is in the broker."""
    job = make_job()
    accepted = ledger.enqueue("run", [job], config={})
    ledger.client.hset("hq:lane:train", mapping={"state": "open", "until": time.time() + 60})
    assert begin(ledger, job).verdict == "held"
    ledger.published([job.trajectory_id], claim=accepted.claim)
    assert ledger.client.zscore("hq:delayed", job.trajectory_id) is not None
    assert ledger.client.zcard("hq:waiting") == 0


def test_a_job_retried_before_its_producer_confirms_stays_due(ledger):
    job = make_job()
    accepted = ledger.enqueue("run", [job], config={})
    ledger.requeue(Claim(job.trajectory_id, begin(ledger, job).epoch), owner="w1")
    ledger.published([job.trajectory_id], claim=accepted.claim)
    assert [due.trajectory_id for due in ledger.due()[1]] == [job.trajectory_id]


def test_a_confirmed_job_waits(ledger):
    job = make_job()
    accepted = ledger.enqueue("run", [job], config={})
    ledger.published([job.trajectory_id], claim=accepted.claim)
    assert ledger.client.zcard("hq:delayed") == 0
    assert ledger.client.zcard("hq:waiting") == 1


def test_a_job_without_a_place_is_found_behind_any_number_of_jobs_of_a_lane_nobody_serves(
    ledger, monkeypatch
):
    monkeypatch.setattr("hermes_queue.ledger.ledger.RECONCILED_AT_ONCE", 4)
    lost = make_job(instance="lost")
    enqueue(ledger, *(make_job(instance=f"o{n}", lane="idle") for n in range(10)))
    enqueue(ledger, lost)
    forget_place(ledger, lost)
    assert reconcile(ledger) == []
    assert ledger.client.ttl("hq:reconcile:train") > 0
    assert reconcile(ledger) + reconcile(ledger) == [lost.trajectory_id]
    assert not ledger.client.exists("hq:reconcile:train")


def test_looking_for_jobs_without_a_place_begins_again_from_the_oldest(ledger, monkeypatch):
    monkeypatch.setattr("hermes_queue.ledger.ledger.RECONCILED_AT_ONCE", 4)
    enqueue(ledger, *(make_job(instance=f"o{n}", lane="idle") for n in range(10)))
    for n in range(2):
        lost = make_job(instance=f"lost{n}")
        enqueue(ledger, lost)
        forget_place(ledger, lost)
        assert [job for _ in range(4) for job in reconcile(ledger)] == [lost.trajectory_id]
        ledger.client.zrem("hq:delayed", lost.trajectory_id)


def test_a_clock_of_redis_that_was_set_back_stops_no_sweep(ledger):
    """Leases that seem to last for an hour more are given as long as after an outage."""
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job, lease_s=3600)
    ledger.client.set("hq:sweep:last", time.time() + 3600)
    sweep = {"interval_s": 1.0, "gap_s": 60.0, "grace_s": 0.01}
    assert ledger.sweep(**sweep) == []
    time.sleep(0.05)
    assert ledger.sweep(**{**sweep, "interval_s": 0.0}) == [job.trajectory_id]


def test_a_clock_of_redis_that_was_set_back_stops_neither_reaper_nor_trimmer(ledger):
    for key in ("hq:reaper:far:turn", "hq:results:trimmed"):
        ledger.client.set(key, time.time() + 3600)
    assert Sandboxes(ledger).take_turn("far", interval_s=30)
    assert trim(ledger, ResultSettings(), interval_s=30) is not None


def test_what_waits_for_a_time_waits_no_longer_when_the_clock_of_redis_was_set_back(ledger):
    """As of before the clock was set back by an hour: times are an hour ahead."""
    retried, lost = make_job(instance="retried"), make_job(instance="lost")
    enqueue(ledger, retried, lost)
    then = time.time() + 3600
    forget_place(ledger, lost)
    ledger.client.zrem("hq:waiting", retried.trajectory_id)
    ledger.client.zadd("hq:delayed", {retried.trajectory_id: then - 1})
    ledger.client.zadd("hq:waiting", {lost.trajectory_id: then - 30})
    ledger.client.zadd("hq:lanes", {"train": then})
    ledger.client.hset("hq:lane:train", mapping={"state": "open", "until": then - 1, "open_s": 60})
    ledger.client.set("hq:sweep:last", then)
    ledger.sweep(interval_s=1.0, gap_s=60.0, grace_s=0.01)
    assert [job.trajectory_id for job in ledger.due()[1]] == [retried.trajectory_id]
    assert begin(ledger, retried).verdict == "run"
    found = ledger.reconcile("train", age_s=20.0)
    assert found == [lost.trajectory_id]
