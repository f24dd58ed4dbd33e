"""Quarantine, and the letters that failures leave which need a person."""

from __future__ import annotations

import json

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim
from hermes_queue.ledger.dead import DeadLetters, LetterFilter, revived
from hermes_queue.ledger.logs import keep_log


def die(ledger, job, sweep):
    """One worker takes the job and dies."""
    begun = begin(ledger, job, attempt=1)
    assert begun.verdict == "run"
    age_lease(ledger, job)
    assert sweep() == [job.trajectory_id]
    return begun


def lane(ledger, job):
    return ledger.client.hget(f"hq:traj:{job.trajectory_id}", "lane").decode()


def failed(job, cause="env_bug", kind="EnvBug"):
    record = make_record(job, None)
    failure = record.failure.model_copy(update={"cause": cause, "type": kind, "message": "why"})
    return record.model_copy(update={"failure": failure})


def bury(ledger, **fields):
    job = make_job(**fields)
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, failed(job))
    return job


def test_two_deaths_move_a_job_to_quarantine(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    die(ledger, job, sweep)
    assert lane(ledger, job) == "train"
    die(ledger, job, sweep)
    assert lane(ledger, job) == "train.quarantine"
    [due] = ledger.due()[1]
    assert due.lane == "train.quarantine"


def test_only_deaths_in_quarantine_count_towards_the_end(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    assert [die(ledger, job, sweep).deaths for _ in range(4)] == [0, 0, 0, 1]
    assert begin(ledger, job).deaths == 2


def test_a_letter_tells_who_died_when_and_in_which_stage(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    begun = begin(ledger, job)
    claim = Claim(job.trajectory_id, begun.epoch)
    ledger.renew([claim], owner="w1", lease_s=30, stages={claim: "verify"})
    age_lease(ledger, job)
    sweep()
    begin(ledger, job, owner="w2")
    publish(ledger, failed(job, "sandbox", "PoisonJob").model_copy(update={"epoch": 2}), "w2")
    [letter] = DeadLetters(ledger).find()
    assert letter.fields["died"].split()[1:] == ["w1", "verify"]
    assert (letter.fields["cause"], letter.fields["owner"]) == ("poison", "w2")
    assert letter.fields["reason"] == "PoisonJob: why"
    assert json.loads(letter.fields["job"])["trajectory_id"] == job.trajectory_id


def test_a_letter_ends_with_what_the_worker_that_died_logged_last(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    for owner in ("w1", "w2"):
        keep_log(ledger, owner, f"last words of {owner}")
        begin(ledger, job, owner=owner)
        age_lease(ledger, job)
        sweep()
    begin(ledger, job, owner="w3")
    keep_log(ledger, "w3", "nothing of interest")
    publish(ledger, failed(job, "sandbox", "PoisonJob").model_copy(update={"epoch": 3}), "w3")
    [letter] = DeadLetters(ledger).find()
    assert letter.fields["log"] == "last words of w2"
    assert ledger.client.ttl("hq:log:w2") > 0


def test_a_letter_of_a_bug_ends_with_the_log_of_the_worker_that_met_it(ledger):
    keep_log(ledger, "w1", "Traceback")
    bury(ledger)
    [letter] = DeadLetters(ledger).find()
    assert letter.fields["log"] == "Traceback"


def test_the_stage_of_a_death_is_not_that_of_an_earlier_attempt(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    claim = Claim(job.trajectory_id, begin(ledger, job).epoch)
    ledger.renew([claim], owner="w1", lease_s=30, stages={claim: "verify"})
    ledger.requeue(claim, owner="w1")
    die(ledger, job, sweep)
    died = ledger.client.hget(f"hq:traj:{job.trajectory_id}", "died").decode()
    assert died.split()[1:] == ["w1", "load"]


def test_publishing_twice_leaves_one_letter(ledger):
    job = bury(ledger)
    assert publish(ledger, failed(job)) == "final"
    assert len(list(DeadLetters(ledger).find())) == 1


def test_other_failures_leave_no_letter(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, failed(job, "sandbox", "SlotLost"))
    assert list(DeadLetters(ledger).find()) == []


def test_letters_are_found_by_run_env_cause_and_age(ledger):
    bury(ledger, run_id="a")
    bury(ledger, run_id="b", env="swe_smith")
    letters = DeadLetters(ledger)

    def runs(**wanted):
        return [letter.fields["run_id"] for letter in letters.find(LetterFilter(**wanted))]

    assert runs() == ["a", "b"]
    assert runs(run_id="b") == runs(env="swe_smith") == ["b"]
    assert runs(cause="poison") == runs(older_than_s=60) == []


def test_a_revived_job_is_a_group_of_its_own_that_names_the_old_one(ledger):
    old = bury(ledger, sample=1, size=2)
    [letter] = DeadLetters(ledger).find()
    job = revived(letter)
    assert revived(letter) == job
    assert (job.run_id, job.instance_id, job.item) == (old.run_id, old.instance_id, old.item)
    assert (job.group_size, job.sample_index) == (1, 0)
    assert job.requeued_from == old.trajectory_id
    assert job.group_id != old.group_id
    assert enqueue(ledger, job) == [job]
    assert ledger.run_status("run").total == 2
    begin(ledger, job)
    assert publish(ledger, make_record(job)) == "group"
    assert make_record(job).requeued_from == old.trajectory_id


def test_a_letter_without_a_job_cannot_run_again(ledger):
    ledger.client.xadd("hq:dead", {"cause": "undeliverable", "group_id": "g"})
    [letter] = DeadLetters(ledger).find()
    with pytest.raises(ConfigurationError, match="no job to run again"):
        revived(letter)


def test_a_purged_letter_is_gone(ledger):
    bury(ledger)
    letters = DeadLetters(ledger)
    [letter] = letters.find()
    assert letters.get(letter.id) == letter
    assert letters.purge(letter)
    assert not letters.purge(letter)
    with pytest.raises(ConfigurationError, match="no dead letter"):
        letters.get(letter.id)
