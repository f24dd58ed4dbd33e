"""Samples whose policy is too old when they are published, in groups and in the run's counters."""

from __future__ import annotations

import json

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Runs
from hermes_queue.ledger.policy import set_version, version_of
from hermes_queue.models import GroupPolicy


def start(ledger, size, on_stale="label", *, lag=1, **policy):
    """The jobs of one group of a run with a bound, all enqueued and begun."""
    bound = GroupPolicy(max_policy_lag=lag, on_stale=on_stale, **policy)
    jobs = [make_job(sample=i, size=size, group_policy=bound) for i in range(size)]
    enqueue(ledger, *jobs)
    for job in jobs:
        assert begin(ledger, job).verdict == "run"
    return jobs


def sampled(job, version, score=1.0, **more):
    return make_record(job, score, policy=str(version), **more)


def fresh(ledger, job, index):
    """Begin the new sample `index` of the group of `job`; returns its job."""
    trajectory_id = f"{job.group_id}.{index}"
    begun = ledger.begin(trajectory_id, 1, owner="w1", lease_s=30.0, nonce=trajectory_id)
    assert begun.verdict == "run"
    return codec.decode_job(begun.job, trajectory_id)


def entry(ledger):
    [(_, raw)] = ledger.client.xrange("hq:results")
    fields = {name.decode(): value.decode() for name, value in raw.items()}
    for name in ("members", "extras", "stale"):
        fields[name] = [int(i.rpartition(".")[2]) for i in json.loads(fields[name])]
    return fields


def counts(ledger):
    """Of the run, after a check that they add up."""
    status = ledger.run_status("run")
    ended = status.finished + status.failed + status.surplus + status.cancelled + status.stale
    assert status.total == status.queued + status.running + ended
    return status


def kept_bytes(ledger):
    return int(ledger.client.get("hq:results:bytes") or 0)


# --- the version of a run ---------------------------------------------------------------


def test_a_run_is_at_the_version_that_its_trainer_sets(ledger):
    assert version_of(ledger, "run") is None
    assert set_version(ledger, "run", 3) is None
    assert set_version(ledger, "run", 4) == 3
    assert set_version(ledger, "run", 4) == 4
    enqueue(ledger, make_job())
    assert (version_of(ledger, "run"), Runs(ledger).get("run").policy_version) == (4, 4)
    assert ledger.client.ttl("hq:run:run") > 0


def test_an_older_version_is_refused_unless_it_is_meant(ledger):
    set_version(ledger, "run", 4)
    with pytest.raises(ConfigurationError, match="at policy version 4, which is newer than 3"):
        set_version(ledger, "run", 3)
    assert set_version(ledger, "run", 3, force=True) == 4
    assert version_of(ledger, "run") == 3


@pytest.mark.parametrize("version", [-1, 2**53])
def test_what_lua_cannot_count_is_no_version(ledger, version):
    with pytest.raises(ConfigurationError, match="0 to"):
        set_version(ledger, "run", version)


def test_an_attempt_knows_the_version_at_its_begin(ledger):
    jobs = [make_job(instance=name) for name in "ab"]
    enqueue(ledger, *jobs)
    assert begin(ledger, jobs[0]).policy_version is None
    set_version(ledger, "run", 7)
    assert begin(ledger, jobs[1]).policy_version == 7


# --- label ------------------------------------------------------------------------------


def test_without_a_bound_nothing_is_too_old(ledger):
    set_version(ledger, "run", 100)
    enqueue(ledger, make_job())
    begin(ledger, make_job())
    assert publish(ledger, sampled(make_job(), 1)) == "group"
    assert (entry(ledger)["stale"], counts(ledger).stale_labelled) == ([], 0)


def test_a_run_without_a_version_has_no_age(ledger):
    [job] = start(ledger, 1, "drop")
    assert publish(ledger, sampled(job, 1)) == "group"
    assert (counts(ledger).stale, counts(ledger).policy_unknown) == (0, 0)


def test_members_beyond_the_bound_are_labelled_as_of_the_groups_publication(ledger):
    jobs = start(ledger, 3)
    set_version(ledger, "run", 5)
    publish(ledger, sampled(jobs[0], 4))
    set_version(ledger, "run", 6)
    publish(ledger, sampled(jobs[1], 6))
    assert publish(ledger, sampled(jobs[2], 5)) == "group"
    found = entry(ledger)
    assert (found["members"], found["stale"], found["policy_version"]) == ([0, 1, 2], [0], "6")
    assert (counts(ledger).finished, counts(ledger).stale_labelled) == (3, 1)


@pytest.mark.parametrize(("version", "stale"), [(5, []), (6, []), (7, [0])])
def test_the_bound_itself_is_not_beyond_it(ledger, version, stale):
    [job] = start(ledger, 1, lag=1)
    set_version(ledger, "run", version)
    publish(ledger, sampled(job, "step-5"))
    assert entry(ledger)["stale"] == stale


def test_where_the_server_tells_no_version_the_one_at_the_begin_counts(ledger):
    [job] = start(ledger, 1)
    set_version(ledger, "run", 9)
    publish(ledger, make_record(job, policy_begun=3))
    assert (entry(ledger)["stale"], counts(ledger).policy_unknown) == ([0], 0)


def test_what_nobody_knows_the_age_of_is_used_and_counted(ledger):
    [job] = start(ledger, 1, "drop")
    set_version(ledger, "run", 9)
    assert publish(ledger, sampled(job, "default")) == "group"
    assert (counts(ledger).finished, counts(ledger).policy_unknown) == (1, 1)


# --- drop -------------------------------------------------------------------------------


def test_a_dropped_sample_is_kept_beside_its_group_which_closes_without_it(ledger):
    jobs = start(ledger, 2, "drop")
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(jobs[0], 3, 0.0)) == "outdated"
    assert publish(ledger, sampled(jobs[1], 5, 1.0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([1], [0], "0")
    assert (float(found["mean"]), found["stale"]) == (1.0, [])
    status = counts(ledger)
    assert (status.finished, status.stale, status.done) == (1, 1, True)
    assert ledger.client.ttl(f"hq:body:{jobs[0].trajectory_id}") > 0
    assert kept_bytes(ledger) == len(codec.encode_record(sampled(jobs[1], 5, 1.0)))


def test_a_member_that_grew_too_old_while_its_group_was_open_is_dropped_at_the_end(ledger):
    jobs = start(ledger, 2, "drop")
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(jobs[0], 5)) == "ok"
    assert counts(ledger).finished == 1
    set_version(ledger, "run", 8)
    assert publish(ledger, sampled(jobs[1], 8)) == "group"
    assert (entry(ledger)["members"], entry(ledger)["extras"]) == ([1], [0])
    assert (counts(ledger).finished, counts(ledger).stale) == (1, 1)


def test_a_group_of_which_nothing_is_left_is_dropped_and_counted(ledger):
    [job] = start(ledger, 1, "drop")
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(job, 0)) == "dropped"
    assert ledger.client.xlen("hq:results") == 0
    assert ledger.client.hget("hq:run:run", "dropped_stale") == b"1"
    status = counts(ledger)
    assert (status.stale, status.dropped, status.done) == (1, 1, True)
    assert kept_bytes(ledger) == 0


def test_a_failed_member_and_a_stale_one_leave_a_group_with_the_failed_one(ledger):
    jobs = start(ledger, 2, "drop")
    set_version(ledger, "run", 5)
    publish(ledger, make_record(jobs[0], None))
    assert publish(ledger, sampled(jobs[1], 0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([0], [1], "0")
    assert (counts(ledger).failed, counts(ledger).stale) == (1, 1)


def test_a_stale_sample_makes_a_group_that_must_be_complete_hopeless(ledger):
    jobs = start(ledger, 3, "drop", on_incomplete="drop")
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(jobs[0], 0)) == "dropped"
    assert (counts(ledger).stale, counts(ledger).surplus) == (1, 2)


def test_a_stale_score_is_in_no_mean_and_no_early_stop(ledger):
    jobs = start(ledger, 3, "drop", stop_after_equal=2)
    set_version(ledger, "run", 5)
    publish(ledger, sampled(jobs[0], 0, 1.0))
    assert publish(ledger, sampled(jobs[1], 5, 1.0)) == "ok", "two equal scores, one of them stale"
    assert publish(ledger, sampled(jobs[2], 5, 0.0)) == "group"
    assert float(entry(ledger)["mean"]) == 0.5


def test_publishing_a_stale_sample_again_changes_nothing(ledger):
    jobs = start(ledger, 2, "requeue", max_requeues=4)
    set_version(ledger, "run", 5)
    record = sampled(jobs[0], 0)
    assert publish(ledger, record) == "outdated"
    before = counts(ledger)
    assert publish(ledger, record) == "final"
    assert counts(ledger) == before


# --- requeue ----------------------------------------------------------------------------


def test_a_requeued_sample_is_replaced_by_a_new_one_of_the_same_job(ledger):
    jobs = start(ledger, 2, "requeue", max_requeues=2)
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(jobs[0], 0)) == "outdated"
    assert publish(ledger, sampled(jobs[1], 5)) == "ok"
    status = counts(ledger)
    assert (status.total, status.queued, status.stale, status.stale_requeued) == (3, 1, 1, 1)
    again = fresh(ledger, jobs[0], 2)
    assert (again.sample_index, again.item, again.agent) == (2, jobs[0].item, jobs[0].agent)
    assert publish(ledger, sampled(again, 5, 0.0)) == "group"
    found = entry(ledger)
    assert (found["members"], found["extras"], found["complete"]) == ([1, 2], [0], "1")
    assert counts(ledger).done


def test_requeues_end_at_their_limit(ledger):
    [job] = start(ledger, 1, "requeue", max_requeues=1)
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(job, 0)) == "outdated"
    assert publish(ledger, sampled(fresh(ledger, job, 1), 0)) == "dropped"
    status = counts(ledger)
    assert (status.stale, status.stale_requeued, status.done) == (2, 1, True)


def test_members_that_grew_too_old_are_requeued_together(ledger):
    jobs = start(ledger, 3, "requeue", max_requeues=3)
    set_version(ledger, "run", 5)
    for job in jobs[:2]:
        publish(ledger, sampled(job, 5))
    set_version(ledger, "run", 9)
    assert publish(ledger, sampled(jobs[2], 9)) == "ok"
    assert (counts(ledger).stale, counts(ledger).stale_requeued) == (2, 2)
    assert publish(ledger, sampled(fresh(ledger, jobs[0], 3), 9)) == "ok"
    assert publish(ledger, sampled(fresh(ledger, jobs[0], 4), 9)) == "group"
    assert (entry(ledger)["members"], entry(ledger)["extras"]) == ([2, 3, 4], [0, 1])
    assert entry(ledger)["complete"] == "1"


def test_refills_and_requeues_have_limits_of_their_own(ledger):
    [job] = start(ledger, 1, "requeue", max_requeues=1, max_refills=1)
    set_version(ledger, "run", 5)
    publish(ledger, sampled(job, 0))
    publish(ledger, make_record(fresh(ledger, job, 1), None))
    assert publish(ledger, sampled(fresh(ledger, job, 2), 5)) == "group"
    assert (counts(ledger).refilled, counts(ledger).stale_requeued) == (1, 1)
    assert (entry(ledger)["members"], entry(ledger)["extras"]) == ([2], [0, 1])


# --- who may give it up -----------------------------------------------------------------


@pytest.mark.parametrize("on_stale", ["drop", "requeue"])
def test_a_late_record_that_is_stale_does_not_stop_the_newer_attempt(ledger, on_stale):
    [job] = start(ledger, 1, on_stale, max_requeues=1)
    sweep = swept(ledger)
    age_lease(ledger, job)
    assert sweep() == [job.trajectory_id]
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(job, 0)) == "stale", "nobody runs it yet, but somebody will"
    begin(ledger, job, owner="w2")
    assert publish(ledger, sampled(job, 0)) == "stale"
    assert publish(ledger, sampled(job, 5, epoch=2), owner="w2") == "group"
    assert (counts(ledger).stale, counts(ledger).finished) == (0, 1)


def test_a_late_record_within_the_bound_wins_as_ever(ledger):
    [job] = start(ledger, 1, "drop")
    sweep = swept(ledger)
    age_lease(ledger, job)
    sweep()
    begin(ledger, job, owner="w2")
    set_version(ledger, "run", 5)
    assert publish(ledger, sampled(job, 4)) == "group"


def test_bodies_of_stale_members_of_a_cancelled_run_count_no_more(ledger):
    jobs = start(ledger, 2, "drop")
    set_version(ledger, "run", 5)
    publish(ledger, sampled(jobs[0], 0))
    Runs(ledger).cancel("run")
    assert kept_bytes(ledger) == 0
    assert (counts(ledger).stale, counts(ledger).cancelled) == (1, 1)
