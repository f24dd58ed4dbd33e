"""What is counted over the life of a deployment is counted once."""

from __future__ import annotations

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.ledger import Claim, Spent
from hermes_queue.ledger.fleet.tally import totals
from hermes_queue.models import AttemptRecord, Failure, Usage


def dead(record):
    failure = Failure(cause="env_bug", stage="setup", type="EnvBug", message="no")
    return record.model_copy(update={"failure": failure})


def test_a_record_that_is_published_twice_counts_once(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    record = make_record(job).model_copy(
        update={"usage": Usage(prompt_tokens=30, completion_tokens=12), "cost_usd": 0.25}
    )
    assert [publish(ledger, record) for _ in range(2)] == ["group", "final"]
    assert totals(ledger) == {
        ("trajectories", "gsm8k", "scored"): 1,
        ("groups", "gsm8k", "published"): 1,
        ("cost_usd",): 0.25,
        ("tokens",): 42,
    }


def test_a_retry_counts_as_one_and_what_it_spent_is_added(ledger):
    job = make_job()
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    failure = Failure(cause="model", stage="agent", type="ModelError", message="503")
    claim = Claim(job.trajectory_id, epoch)
    for _ in range(2):
        ledger.requeue(
            claim,
            owner="w1",
            failed_attempt=AttemptRecord(attempt=1, epoch=epoch, failure=failure),
            spent=Spent(10, None),
        )
    begin(ledger, job, attempt=2)
    publish(ledger, make_record(job, attempt=2, epoch=2))
    counted = totals(ledger)
    assert counted["retries", "model"] == 1
    assert (counted["tokens",], counted["unpriced",]) == (10, 1)
    assert counted["trajectories", "gsm8k", "scored"] == 1
    assert not [key for key in counted if key[0] == "failures"]


def test_a_hand_back_counts_nothing(ledger):
    job = make_job()
    enqueue(ledger, job)
    ledger.requeue(Claim(job.trajectory_id, begin(ledger, job).epoch), owner="w1")
    assert totals(ledger) == {}


def test_a_failure_for_good_counts_by_env_and_cause_and_as_a_dead_letter(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, dead(make_record(job, None)))
    counted = totals(ledger)
    assert counted["failures", "gsm8k", "env_bug"] == 1
    assert counted["trajectories", "gsm8k", "failed"] == 1
    assert counted["dead_letters", "env_bug"] == 1


def test_a_lease_that_ends_counts_once(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    begin(ledger, job)
    age_lease(ledger, job)
    sweep()
    sweep()
    assert totals(ledger) == {("lease_expiries",): 1}


def test_names_of_envs_cannot_fill_redis(ledger):
    for n in range(1000):
        ledger.client.hset("hq:totals", f"trajectories|env{n}|scored", 1)
    job = make_job(env="one.more|odd")
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, make_record(job))
    counted = totals(ledger)
    assert counted["trajectories", "other", "other"] == 1
    assert counted["groups", "other", "other"] == 1
    assert len(counted) == pytest.approx(1000, abs=5)
