"""Quarantine, and the letters that failures leave which need a person."""

from __future__ import annotations

import json
import time

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim
from hermes_queue.ledger.dead import DeadLetters, LetterFilter, revived
from hermes_queue.ledger.poison import forget, isolate, item_hash, poison_items
from hermes_queue.models import Failure


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
    failure = Failure(cause=cause, stage=record.failure.stage, type=kind, message="why")
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
    assert codec.decode_job(letter.fields["job"], letter.fields["trajectory_id"]) == job


def test_a_letter_ends_with_what_the_worker_that_died_logged_last(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    for owner in ("w1", "w2"):
        DeadLetters(ledger).keep_log(owner, f"last words of {owner}")
        begin(ledger, job, owner=owner)
        age_lease(ledger, job)
        sweep()
    begin(ledger, job, owner="w3")
    DeadLetters(ledger).keep_log("w3", "nothing of interest")
    publish(ledger, failed(job, "sandbox", "PoisonJob").model_copy(update={"epoch": 3}), "w3")
    [letter] = DeadLetters(ledger).find()
    assert letter.fields["log"] == "last words of w2"
    assert ledger.client.ttl("hq:log:w2") > 0


def test_a_letter_of_a_bug_ends_with_the_log_of_the_worker_that_met_it(ledger):
    DeadLetters(ledger).keep_log("w1", "Traceback")
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


def test_what_is_no_job_any_more_is_named_and_cannot_run_again(ledger):
    ledger.client.xadd("hq:dead", {"cause": "poison", "trajectory_id": "r.g.0", "job": "{half"})
    [letter] = DeadLetters(ledger).find()
    with pytest.raises(ConfigurationError, match=r"r\.g\.0 is no job"):
        revived(letter)


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


def poisoned(ledger, job, epoch):
    """A worker gives it up."""
    record = failed(job, "sandbox", "PoisonJob").model_copy(update={"epoch": epoch})
    changed = record.provenance.model_copy(update={"item_sha256": item_hash(job)})
    return publish(ledger, record.model_copy(update={"provenance": changed}))


def test_jobs_of_a_poison_item_run_alone_from_the_first_attempt_in_the_next_run(ledger):
    item = {"question": "q"}
    first, again, other = (
        make_job(run_id, item=row)
        for run_id, row in (("one", item), ("two", item), ("three", {"question": "r"}))
    )
    for job in (first, again, other):
        enqueue(ledger, job)
    begun = begin(ledger, first)
    assert not begun.any_poison
    assert poisoned(ledger, first, begun.epoch) == "group"
    [letter] = DeadLetters(ledger).find()
    [known] = poison_items(ledger)
    assert (known.letter_id, known.trajectory_id) == (letter.id, first.trajectory_id)
    assert ledger.client.ttl("hq:poison") > 29 * 86400

    def ask(job):
        begun = begin(ledger, job)
        assert begun.any_poison
        return isolate(ledger, Claim(job.trajectory_id, begun.epoch), job, owner="w1"), begun.epoch

    assert ask(other)[0] == ""
    assert ask(again)[0] == letter.id
    assert [(due.trajectory_id, due.lane) for due in ledger.due()[1]] == [
        (again.trajectory_id, "train.quarantine")
    ]
    assert ledger.run_status("two").running == 0
    answer, epoch = ask(again)
    assert answer == "", "it is alone now"
    poisoned(ledger, again, epoch)
    assert [each.fields["earlier"] for each in DeadLetters(ledger).find()] == ["", letter.id]


def test_a_poison_item_is_forgotten_on_demand_and_by_itself(ledger):
    jobs = [make_job("run", f"i{n}", item={"question": str(n)}) for n in range(3)]
    enqueue(ledger, *jobs)
    for job in jobs[:2]:
        poisoned(ledger, job, begin(ledger, job).epoch)
    old, new = (item_hash(job) for job in jobs[:2])
    value = json.loads(ledger.client.hget("hq:poison", old))
    ledger.client.hset("hq:poison", old, json.dumps({**value, "until": 1.0}))
    assert [each.item_sha256 for each in poison_items(ledger)] == [new]
    forget(ledger, new)
    assert poison_items(ledger) == []
    with pytest.raises(ConfigurationError, match="hermes-queue dead items"):
        forget(ledger, new)
    poisoned(ledger, jobs[2], begin(ledger, jobs[2]).epoch)
    assert ledger.client.hkeys("hq:poison") == [item_hash(jobs[2]).encode()]


def test_letters_expire_by_the_clock_that_dated_them(ledger, monkeypatch):
    ledger.client.xadd("hq:dead", {"cause": "env_bug"})
    ahead_s = time.time() + 31 * 86400
    monkeypatch.setattr(time, "time", lambda: ahead_s)
    for _ in range(150):
        ledger.client.xadd("hq:dead", {"cause": "env_bug"})
    assert DeadLetters(ledger).expire(30 * 86400) == 0
    assert ledger.client.xlen("hq:dead") == 151
