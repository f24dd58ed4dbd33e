"""The journal of a running trajectory: who may add to it, and what deletes it."""

from __future__ import annotations

import pytest
from ledger_steps import SWEEP, age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.ledger import Claim, Ledger, Runs, Spent
from hermes_queue.ledger.budgets import accounts, set_budgets
from hermes_queue.ledger.fleet.handovers import snapshot_needs
from hermes_queue.ledger.fleet.journal import append, read_journal
from hermes_queue.models import AttemptRecord, Usage


def add(ledger: Ledger, job, *entries, after=0, owner="w1", epoch=1, snapshot_id=""):
    claim = Claim(job.trajectory_id, epoch)
    return ledger.make(
        append(claim, entries, owner=owner, after=after, ttl_s=60, snapshot_id=snapshot_id)
    )


def entries(ledger: Ledger, job):
    return read_journal(ledger, job.trajectory_id, most=100, most_bytes=1000)


@pytest.fixture
def job(ledger: Ledger):
    """A running one of which two turns are kept."""
    [job] = enqueue(ledger, make_job())
    assert begin(ledger, job).has_journal is False
    assert add(ledger, job, b"one", b"two", snapshot_id="s1") == "ok"
    return job


def test_a_repeated_call_adds_nothing_twice_and_lost_turns_give_way(ledger, job):
    for _ in range(2):
        assert add(ledger, job, b"three", after=2) == "ok"
    assert entries(ledger, job) == [b"one", b"two", b"three"]
    assert add(ledger, job, b"other", after=1) == "ok"
    assert entries(ledger, job) == [b"one", b"other"]
    assert 0 < ledger.client.ttl(f"hq:journal:{job.trajectory_id}") <= 60
    assert snapshot_needs(ledger, [job.trajectory_id, "nobody"]) == {
        job.trajectory_id: ("s1", False),
        "nobody": ("", False),
    }


def test_entries_that_were_lost_are_missed_and_nothing_is_added_behind_the_gap(ledger, job):
    ledger.client.delete(f"hq:journal:{job.trajectory_id}")
    assert add(ledger, job, b"three", after=2) == "gap"
    assert entries(ledger, job) == []


@pytest.mark.parametrize("stranger", [{"owner": "w2"}, {"epoch": 2}])
def test_nobody_but_the_owner_of_the_lease_adds_to_it(ledger, job, stranger):
    assert add(ledger, job, b"forged", after=2, **stranger) == "stale"
    assert entries(ledger, job) == [b"one", b"two"]


def test_the_next_owner_is_told_of_it_and_the_last_one_can_no_longer_add(ledger, job):
    take_back = swept(ledger)
    age_lease(ledger, job)
    assert take_back() == [job.trajectory_id]
    assert add(ledger, job, b"late", after=2) == "stale"
    begun = begin(ledger, job, owner="w2")
    assert (begun.epoch, begun.has_journal, begun.booked_epoch) == (2, True, 0)
    assert add(ledger, job, b"late", after=2) == "stale"
    assert entries(ledger, job) == [b"one", b"two"]


def test_tokens_of_a_job_that_was_handed_back_are_booked_and_those_of_a_dead_worker_not(
    ledger, job
):
    assert ledger.requeue(Claim(job.trajectory_id, 1), owner="w1")
    begun = begin(ledger, job)
    assert (begun.has_journal, begun.booked_epoch) == (True, 1)
    swept(ledger)
    age_lease(ledger, job)
    ledger.sweep(**SWEEP)
    assert begin(ledger, job).booked_epoch == 1


def test_a_hand_back_books_only_turns_that_its_attempt_has_counted(ledger, job):
    take_back = swept(ledger)
    age_lease(ledger, job)
    take_back()
    begin(ledger, job, owner="w2")
    ledger.requeue(Claim(job.trajectory_id, 2), owner="w2")  # without a sandbox: nothing was spent
    assert begin(ledger, job, owner="w3").booked_epoch == 0
    ledger.requeue(Claim(job.trajectory_id, 3), owner="w3", continued=True)
    assert begin(ledger, job, owner="w4").booked_epoch == 3
    add(ledger, job, b"three", after=2, owner="w4", epoch=4)
    ledger.requeue(Claim(job.trajectory_id, 4), owner="w4")
    assert begin(ledger, job).booked_epoch == 4


@pytest.mark.parametrize("noted", [Spent(80, 0.25), Spent(80, None), Spent(300)])
def test_a_dead_workers_turns_in_the_journal_are_not_charged_with_its_reservation_too(
    ledger, noted
):
    set_budgets(ledger, "run", {"tokens": 1000.0})
    [job] = enqueue(ledger, make_job(limits={"max_tokens": 100}))
    take_back = swept(ledger)
    for epoch in (1, 2, 3):
        begin(ledger, job, owner="w1")
        if epoch < 3:  # the third dies before it adds any
            claim = Claim(job.trajectory_id, epoch)
            ledger.make(append(claim, [b"x"], owner="w1", after=0, ttl_s=60, spent=noted))
        age_lease(ledger, job)
        assert take_back() == [job.trajectory_id]
    tokens = accounts(ledger, "run", now=0.0)["tokens"]
    assert (tokens.spent, tokens.reserved) == (2 * max(0, 100 - noted.tokens) + 100, 0)
    begin(ledger, job)
    usage = Usage(prompt_tokens=noted.tokens)
    publish(ledger, make_record(job).model_copy(update={"usage": usage}))
    assert accounts(ledger, "run", now=0.0)["tokens"].spent == tokens.spent + noted.tokens


def retried(ledger, job):
    failure = make_record(job, None).failure
    attempt = AttemptRecord(attempt=1, epoch=1, failure=failure)
    ledger.requeue(Claim(job.trajectory_id, 1), owner="w1", failed_attempt=attempt)
    assert begin(ledger, job, attempt=2).has_journal is False


def published(ledger, job):
    assert publish(ledger, make_record(job)) == "group"


def cancelled(ledger, job):
    Runs(ledger).cancel("run")


def purged(ledger, job):
    cancelled(ledger, job)
    Runs(ledger).purge("run")


def turned_away(ledger, job):
    ledger.requeue(Claim(job.trajectory_id, 1), owner="w1")
    ledger.client.hset("hq:run:run", "state", "cancelled")
    assert begin(ledger, job).verdict == "cancelled"


@pytest.mark.parametrize("end", [retried, published, cancelled, purged, turned_away])
def test_it_is_deleted_when_its_attempt_has_failed_or_its_trajectory_has_ended(ledger, job, end):
    end(ledger, job)
    assert not ledger.client.exists(f"hq:journal:{job.trajectory_id}")
    assert snapshot_needs(ledger, [job.trajectory_id]) == {job.trajectory_id: ("", False)}


def test_it_is_deleted_when_the_group_closes_without_its_trajectory(ledger):
    jobs = [make_job(sample=n, group_policy={"extra_samples": 1}) for n in range(2)]
    enqueue(ledger, *jobs)
    for each in jobs:
        begin(ledger, each)
    add(ledger, jobs[1], b"one")
    assert publish(ledger, make_record(jobs[0])) == "group"
    assert not ledger.client.exists(f"hq:journal:{jobs[1].trajectory_id}")


def test_more_than_a_journal_may_have_is_not_read(ledger, job):
    ledger.client.rpush(f"hq:journal:{job.trajectory_id}", b"x" * 2000)
    with pytest.raises(ValueError, match="1000 bytes"):
        entries(ledger, job)
    ledger.client.rpush(f"hq:journal:{job.trajectory_id}", *[b"x"] * 100)
    with pytest.raises(ValueError, match="100 entries"):
        entries(ledger, job)
