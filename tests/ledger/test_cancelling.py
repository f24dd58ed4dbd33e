"""Single trajectories and groups that are cancelled end, and their groups close."""

from __future__ import annotations

import json
import time

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.ledger import Claim, Runs
from hermes_queue.ledger.cancelling import cancel, cancel_tasks
from hermes_queue.ledger.runs import Pause


def cancelled(job, epoch):
    record = make_record(job, None, epoch=epoch)
    failure = record.failure.model_copy(
        update={"cause": "cancelled", "kind": "cancelled", "refillable": False}
    )
    return record.model_copy(update={"failure": failure})


def end(ledger, job, attempt=1):
    """What a worker does with it."""
    begun = begin(ledger, job, attempt=attempt)
    assert (begun.verdict, begun.cancel) == ("run", "why")
    return publish(ledger, cancelled(job, begun.epoch))


def test_a_waiting_trajectory_is_due_at_once_whatever_holds_it_back_and_its_group_closes(ledger):
    first, second = jobs = [make_job(sample=n, size=2) for n in range(2)]
    enqueue(ledger, *jobs)
    publish(ledger, make_record(first, 1.0, epoch=begin(ledger, first).epoch))
    assert ledger.due()[1] == []
    found = cancel(ledger, trajectories=[second.trajectory_id], reason="why")
    assert found == {second.trajectory_id: "waiting"}
    [due] = ledger.due()[1]
    assert (due.trajectory_id, due.cancel) == (second.trajectory_id, True)
    assert due.task_id != f"{second.trajectory_id}.1", "Celery drops the id that was revoked"
    ledger.client.hset("hq:lane:train", mapping={"state": "open", "until": time.time() + 60})
    Runs(ledger).pause("run")
    assert end(ledger, second) == "group"
    status = ledger.run_status("run")
    assert (status.finished, status.failed, status.groups, status.done) == (1, 1, 1, True)
    assert not ledger.client.exists("hq:waiting", "hq:delayed", "hq:dead", "hq:leases")


def test_a_parked_trajectory_is_taken_out_and_the_pause_stays(ledger):
    [job] = enqueue(ledger, make_job())
    Runs(ledger).pause("run", "later")
    assert begin(ledger, job).verdict == "paused"
    cancel(ledger, trajectories=[job.trajectory_id], reason="why")
    assert ledger.client.scard("hq:run:run:parked") == 0
    assert end(ledger, job) == "group"
    assert Runs(ledger).paused("run") == Pause("operator", "later")


def test_the_owner_of_a_running_trajectory_keeps_its_lease_and_is_told_until_it_has_ended(ledger):
    [job] = enqueue(ledger, make_job())
    claim = Claim(job.trajectory_id, begin(ledger, job).epoch)
    assert cancel(ledger, trajectories=[job.trajectory_id]) == {job.trajectory_id: "running"}
    for _ in range(2):
        assert ledger.renew([claim], owner="w1", lease_s=30) == {claim: "cancel"}
    assert ledger.client.zscore("hq:leases", job.trajectory_id)
    assert publish(ledger, cancelled(job, claim.epoch)) == "group"


def test_one_that_is_handed_back_meanwhile_does_not_run_again(ledger):
    [job] = enqueue(ledger, make_job())
    claim = Claim(job.trajectory_id, begin(ledger, job).epoch)
    cancel(ledger, trajectories=[job.trajectory_id], reason="why")
    assert ledger.requeue(claim, owner="w1")
    assert end(ledger, job) == "group"


def test_a_group_ends_with_samples_that_are_enqueued_later_and_keeps_what_was_measured(ledger):
    jobs = [make_job(sample=n, size=3) for n in range(3)]
    enqueue(ledger, *jobs[:2])
    publish(ledger, make_record(jobs[0], 1.0, epoch=begin(ledger, jobs[0]).epoch))
    found = cancel(ledger, groups=[jobs[0].group_id], reason="why")
    assert found == {jobs[0].trajectory_id: "final", jobs[1].trajectory_id: "waiting"}
    enqueue(ledger, jobs[2])
    assert [end(ledger, job) for job in jobs[1:]] == ["ok", "group"]
    [(_, fields)] = ledger.client.xrange("hq:results")
    assert json.loads(fields[b"members"]) == [job.trajectory_id for job in jobs]
    assert cancel(ledger, groups=[jobs[0].group_id]) == {jobs[0].group_id: "closed"}


@pytest.mark.parametrize("terminate", [False, True])
def test_what_celery_revokes_ends_only_if_it_waits_and_what_it_terminates_in_any_case(
    ledger, terminate
):
    waits, runs, retried = jobs = [make_job(instance=name) for name in ("a", "b", "c")]
    enqueue(ledger, *jobs)
    claim = Claim(runs.trajectory_id, begin(ledger, runs).epoch)
    ledger.client.hset(f"hq:traj:{retried.trajectory_id}", "attempt", 2)
    ids = [f"{job.trajectory_id}.1" for job in jobs] + ["not one of ours", ""]
    cancel_tasks(ledger, ids, reason="why", waiting_only=not terminate)
    assert [due.trajectory_id for due in ledger.due()[1]] == [waits.trajectory_id]
    notices = ledger.renew([claim], owner="w1", lease_s=30)
    assert notices == ({claim: "cancel"} if terminate else {})
    assert begin(ledger, retried, attempt=2).cancel == ""
