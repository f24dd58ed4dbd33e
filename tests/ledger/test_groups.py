"""When a group is closed, and with whom."""

from __future__ import annotations

import json

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.ledger import Claim, Runs
from hermes_queue.ledger.fleet.tally import totals
from hermes_queue.models import Failure, GroupPolicy


def start(ledger, size, *, samples=None, **policy):
    """The jobs of one group, all enqueued and begun."""
    extra = (samples or size) - size
    policy = GroupPolicy(extra_samples=extra, **policy)
    jobs = [make_job(sample=i, size=size, group_policy=policy) for i in range(size + extra)]
    enqueue(ledger, *jobs)
    for job in jobs:
        assert begin(ledger, job).verdict == "run"
    return jobs


def entry(ledger):
    [(_, raw)] = ledger.client.xrange("hq:results")
    fields = {name.decode(): value.decode() for name, value in raw.items()}
    fields["members"] = [int(i.rpartition(".")[2]) for i in json.loads(fields["members"])]
    fields["extras"] = [int(i.rpartition(".")[2]) for i in json.loads(fields["extras"])]
    return fields


def refill(ledger, job, index):
    """Begin the refill with sample index `index` of the group of `job`; returns its job."""
    trajectory_id = f"{job.group_id}.{index}"
    assert trajectory_id.encode() in ledger.client.zrange("hq:delayed", 0, -1)
    begun = ledger.begin(trajectory_id, 1, owner="w1", lease_s=30.0, nonce=trajectory_id)
    assert begun.verdict == "run"
    return codec.decode_job(begun.job, trajectory_id)


def test_a_failed_member_is_replaced_by_a_new_sample_and_becomes_an_extra(ledger):
    jobs = start(ledger, 2, max_refills=1)
    assert publish(ledger, make_record(jobs[0], None)) == "ok"
    assert publish(ledger, make_record(jobs[1], 1.0)) == "ok"
    fresh = refill(ledger, jobs[0], 2)
    assert (fresh.sample_index, fresh.item, fresh.agent) == (2, jobs[0].item, jobs[0].agent)
    assert publish(ledger, make_record(fresh, 0.0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([1, 2], [0], "1")
    assert (float(found["mean"]), found["size"]) == (0.5, "2")


def test_a_refill_raises_the_total_of_its_run(ledger):
    jobs = start(ledger, 1, max_refills=1)
    publish(ledger, make_record(jobs[0], None))
    status = ledger.run_status("run")
    assert (status.total, status.failed, status.queued, status.refilled) == (2, 1, 1, 1)
    assert not status.done
    publish(ledger, make_record(refill(ledger, jobs[0], 1)))
    assert ledger.run_status("run").done


def test_refills_end_at_their_limit_and_the_group_closes_incomplete(ledger):
    jobs = start(ledger, 2, max_refills=1)
    publish(ledger, make_record(jobs[0], None))
    publish(ledger, make_record(refill(ledger, jobs[0], 2), None))
    assert publish(ledger, make_record(jobs[1], 1.0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([0, 1], [2], "0")
    assert float(found["mean"]) == 1.0


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("env_bug", "EnvBug"),
        ("cancelled", "Cancelled"),
        ("sandbox", "PoisonJob"),
        ("sandbox", "IsolationUnavailable"),
    ],
)
def test_what_would_fail_again_is_not_refilled(ledger, cause, kind):
    jobs = start(ledger, 1, max_refills=3)
    record = make_record(jobs[0], None)
    failure = Failure(cause=cause, stage="setup", type=kind, message="why")
    assert publish(ledger, record.model_copy(update={"failure": failure})) == "group"
    assert entry(ledger)["complete"] == "0"


def test_extra_samples_stand_in_for_failed_ones_before_a_refill_does(ledger):
    jobs = start(ledger, 1, samples=2, max_refills=1)
    assert publish(ledger, make_record(jobs[0], None)) == "ok"
    assert ledger.run_status("run").refilled == 0
    assert publish(ledger, make_record(jobs[1], 1.0)) == "group"
    assert (entry(ledger)["members"], entry(ledger)["extras"]) == ([1], [0])


def test_the_first_measured_samples_win_and_the_surplus_is_revoked(ledger):
    jobs = start(ledger, 2, samples=4)
    publish(ledger, make_record(jobs[3], 1.0))
    assert publish(ledger, make_record(jobs[1], 0.0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([1, 3], [0, 2], "1")
    claim = Claim(jobs[0].trajectory_id, 1)
    assert ledger.renew([claim], owner="w1", lease_s=30) == {claim: "surplus"}
    status = ledger.run_status("run")
    assert (status.surplus, status.running, status.done) == (2, 0, True)


def test_what_a_surplus_sample_had_to_show_is_kept_beside_the_group(ledger):
    jobs = start(ledger, 1, samples=2)
    publish(ledger, make_record(jobs[0], 1.0))
    assert publish(ledger, make_record(jobs[1], 0.0)) == "surplus"
    key = f"hq:body:{jobs[1].trajectory_id}"
    assert codec.decode_record(ledger.client.get(key)).score == 0.0
    assert ledger.client.ttl(key) > 0
    assert ledger.client.xlen("hq:results") == 1


def test_a_surplus_job_that_waits_is_not_begun_any_more(ledger):
    policy = GroupPolicy(extra_samples=1)
    jobs = [make_job(sample=i, size=1, group_policy=policy) for i in range(2)]
    enqueue(ledger, *jobs)
    begin(ledger, jobs[0])
    assert publish(ledger, make_record(jobs[0])) == "group"
    assert begin(ledger, jobs[1]).verdict == "surplus"
    assert not ledger.client.exists("hq:waiting", "hq:delayed", "hq:leases")


def test_a_sample_that_is_enqueued_after_its_group_has_closed_is_surplus(ledger):
    policy = GroupPolicy(extra_samples=1)
    jobs = [make_job(sample=i, size=1, group_policy=policy) for i in range(2)]
    enqueue(ledger, jobs[0])
    begin(ledger, jobs[0])
    publish(ledger, make_record(jobs[0]))
    assert enqueue(ledger, jobs[1]) == []
    status = ledger.run_status("run")
    assert (status.total, status.surplus, status.done) == (2, 1, True)


def test_a_group_without_variance_is_dropped_and_counted_when_asked_for(ledger):
    jobs = start(ledger, 2, drop_zero_variance=True)
    publish(ledger, make_record(jobs[0], 1.0))
    assert publish(ledger, make_record(jobs[1], 1.0)) == "dropped"
    assert ledger.client.xlen("hq:results") == 0
    assert ledger.run_status("run").dropped == 1
    assert ledger.client.hget("hq:run:run", "dropped_zero_variance") == b"1"
    assert all(ledger.client.ttl(f"hq:body:{job.trajectory_id}") > 0 for job in jobs)


def test_a_group_with_variance_is_not_dropped(ledger):
    jobs = start(ledger, 2, drop_zero_variance=True)
    publish(ledger, make_record(jobs[0], 1.0))
    assert publish(ledger, make_record(jobs[1], 0.0)) == "group"


def test_a_group_whose_first_scores_are_all_the_same_is_closed_early_when_asked_for(ledger):
    jobs = start(ledger, 4, stop_after_equal=2)
    publish(ledger, make_record(jobs[0], 0.0))
    assert publish(ledger, make_record(jobs[2], 0.0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([0, 2], [1, 3], "0")
    assert ledger.client.hget("hq:run:run", "stopped_early") == b"1"


def test_a_group_with_different_scores_is_not_closed_early(ledger):
    jobs = start(ledger, 3, stop_after_equal=2)
    publish(ledger, make_record(jobs[0], 0.0))
    assert publish(ledger, make_record(jobs[1], 1.0)) == "ok"
    assert publish(ledger, make_record(jobs[2], 1.0)) == "group"
    assert entry(ledger)["complete"] == "1"


def test_an_incomplete_group_is_dropped_as_soon_as_it_cannot_complete_when_asked_for(ledger):
    jobs = start(ledger, 3, on_incomplete="drop")
    publish(ledger, make_record(jobs[0], 1.0))
    assert publish(ledger, make_record(jobs[1], None)) == "dropped"
    assert begin(ledger, jobs[2]).verdict == "surplus"
    assert ledger.client.hget("hq:run:run", "dropped_incomplete") == b"1"
    assert ledger.run_status("run").done


def test_publishing_a_member_again_after_its_group_has_closed_changes_nothing(ledger):
    jobs = start(ledger, 1, samples=2, max_refills=1)
    publish(ledger, make_record(jobs[0]))
    before = ledger.run_status("run")
    assert publish(ledger, make_record(jobs[0], None)) == "final"
    assert ledger.run_status("run") == before
    assert ledger.client.xlen("hq:results") == 1


def kept_bytes(ledger):
    return int(ledger.client.get("hq:results:bytes") or 0)


def test_bodies_of_an_open_group_count_towards_the_limits(ledger):
    jobs = start(ledger, 2)
    record = make_record(jobs[0])
    publish(ledger, record)
    assert kept_bytes(ledger) == len(codec.encode_record(record))


@pytest.mark.parametrize("policy", [{"drop_zero_variance": True}, {"on_incomplete": "drop"}])
def test_bodies_of_a_dropped_group_count_no_more(ledger, policy):
    jobs = start(ledger, 2, **policy)
    publish(ledger, make_record(jobs[0]))
    score = 1.0 if "drop_zero_variance" in policy else None
    assert publish(ledger, make_record(jobs[1], score)) == "dropped"
    assert kept_bytes(ledger) == 0


def test_bodies_of_a_cancelled_run_count_no_more(ledger):
    jobs = start(ledger, 2)
    publish(ledger, make_record(jobs[0]))
    Runs(ledger).cancel("run")
    assert kept_bytes(ledger) == 0


def test_a_replaced_member_counts_only_until_its_group_is_closed(ledger):
    jobs = start(ledger, 1, max_refills=1)
    publish(ledger, make_record(jobs[0], None))
    refill(ledger, jobs[0], 1)
    fresh = jobs[0].model_copy(update={"trajectory_id": f"{jobs[0].group_id}.1", "sample_index": 1})
    record = make_record(fresh)
    assert publish(ledger, record) == "group"
    assert kept_bytes(ledger) == len(codec.encode_record(record))


def test_a_parked_sample_that_its_group_needs_no_more_is_not_parked_any_more(ledger):
    first, second, late = (
        make_job(sample=n, size=2, group_policy={"extra_samples": 1}) for n in range(3)
    )
    enqueue(ledger, first, second, late)
    begin(ledger, first)
    begin(ledger, second)
    Runs(ledger).pause("run")
    assert begin(ledger, late).verdict == "paused"
    publish(ledger, make_record(first))
    assert publish(ledger, make_record(second)) == "group"
    info = Runs(ledger).get("run")
    assert (info.parked, info.counters.queued, info.counters.surplus) == (0, 0, 1)


def test_a_refill_of_a_quarantined_job_begins_in_the_lane_of_all(ledger):
    (job,) = start(ledger, 1, max_refills=1)
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "lane", "train.quarantine")
    assert publish(ledger, make_record(job, None)) == "ok"
    assert ledger.client.hget(f"hq:traj:{job.group_id}.1", "lane") == b"train"


def test_what_policies_did_is_told_with_the_run(ledger):
    jobs = start(ledger, 3, stop_after_equal=2)
    publish(ledger, make_record(jobs[0]))
    publish(ledger, make_record(jobs[1]))
    again = [
        make_job("other", sample=i, size=2, group_policy={"drop_zero_variance": True})
        for i in range(2)
    ]
    enqueue(ledger, *again)
    for job in again:
        begin(ledger, job)
        publish(ledger, make_record(job))
    status = ledger.run_status("run")
    assert (status.stopped_early, status.incomplete, status.groups) == (1, 1, 1)
    status = ledger.run_status("other")
    assert (status.dropped, status.dropped_zero_variance, status.dropped_incomplete) == (1, 1, 0)


def test_samples_enqueued_long_after_their_group_was_closed_and_forgotten_are_surplus(ledger):
    """Else a group without its other members would wait for them for ever."""
    first, second, late = (
        make_job(sample=n, size=2, group_policy={"extra_samples": 1}) for n in range(3)
    )
    enqueue(ledger, first, second)
    for job in (first, second):
        begin(ledger, job)
        publish(ledger, make_record(job))
    for key in ledger.client.scan_iter("hq:*"):
        if key.startswith((b"hq:group:", b"hq:traj:")):
            ledger.client.delete(key)  # their time is over
    assert enqueue(ledger, first, second, late) == []
    status = ledger.run_status("run")
    assert (status.total, status.finished, status.surplus, status.done) == (3, 2, 1, True)
    assert not ledger.client.exists(f"hq:group:{late.group_id}")


def unscored(job):
    update = {"score": None, "status": "unscored", "schema_version": 2}
    return make_record(job, 1.0).model_copy(update=update)


def test_records_that_are_unscored_by_design_complete_their_group_without_a_mean(ledger):
    policy = {"on_incomplete": "drop", "drop_zero_variance": True, "stop_after_equal": 1}
    jobs = start(ledger, 2, samples=3, **policy)
    assert publish(ledger, unscored(jobs[0])) == "ok"
    assert publish(ledger, unscored(jobs[2])) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([0, 2], [1], "1")
    assert (found["mean"], found["std"]) == ("", "")
    status = ledger.run_status("run")
    assert (status.finished, status.failed, status.incomplete) == (2, 0, 0)
    assert totals(ledger)["trajectories", "gsm8k", "unscored"] == 2


def test_a_failed_sample_fills_up_a_group_of_unscored_ones(ledger):
    jobs = start(ledger, 2)
    publish(ledger, make_record(jobs[0], None))
    assert publish(ledger, unscored(jobs[1])) == "group"
    found = entry(ledger)
    assert (found["members"], found["complete"], found["mean"]) == ([0, 1], "0", "")
