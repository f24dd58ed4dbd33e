"""Messages that name a job which may not begin now, though its message is still there."""

from __future__ import annotations

import pytest
from ledger_steps import SWEEP, publish, take
from records import make_job, make_record

from hermes_queue.ledger import Claim, Runs
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.fleet.pacing import set_pace
from hermes_queue.ledger.scheduling import Shares

LEAF = "train||run|gsm8k"


def send(ledger, count=1):
    made = [make_job(instance=f"i{n}", limits={"max_tokens": 10}) for n in range(count)]
    accepted = ledger.enqueue("run", made, config=None)
    ledger.published([job.trajectory_id for job in accepted], claim=accepted.claim)
    return made


@pytest.mark.parametrize(("kind", "name"), [("run", "run"), ("env", "gsm8k"), ("team", ""),
                                            ("lane", "train"), ("fleet", "")])  # fmt: skip
def test_a_job_that_was_held_does_not_begin_beyond_a_limit_when_a_message_names_it(
    ledger, kind, name
):
    jobs = send(ledger, 2)
    set_budgets(ledger, "run", {"tokens": 15})
    assert [take(ledger).verdict, take(ledger).verdict] == ["run", "held"]
    set_budgets(ledger, "run", {"tokens": 100})
    Shares(ledger).change(kind, name, {"max_running": 1})
    assert take(ledger, jobs[1].trajectory_id).verdict == "none"
    Shares(ledger).reset(kind, name)
    assert take(ledger, jobs[1].trajectory_id).verdict == "run"


def test_a_job_that_was_taken_back_does_not_begin_beyond_a_limit_when_a_message_names_it(ledger):
    [job] = send(ledger)
    ledger.sweep(**SWEEP)
    take(ledger)
    ledger.client.zadd("hq:leases", {job.trajectory_id: 1})
    assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    Shares(ledger).change("env", "gsm8k", {"max_running": 0})
    assert take(ledger, job.trajectory_id).verdict == "none"


def park(ledger):
    Runs(ledger).pause("run")
    return "hq:run:run:parked"


def pace(ledger):
    set_pace(ledger, "run", 1, readers=["trainer"])
    ledger.client.hset("hq:run:run:ahead", "another", "")
    return "hq:run:run:held"


def spend(ledger):
    SharedBudgets(ledger).set("env:gsm8k", {"tokens": 1})
    ledger.client.hset("hq:budget:env:gsm8k", mapping={"spent:tokens": 2, "warned": "-"})
    return "hq:budget-held:env:gsm8k"


@pytest.mark.parametrize("hold", [park, pace, spend])
def test_a_job_that_is_set_aside_stands_nowhere_else_when_a_message_names_it(ledger, hold):
    """Results that wait for readers would have it delayed, too."""
    [job] = send(ledger)
    key = hold(ledger)
    take(ledger)
    assert ledger.client.exists(key)
    ledger.client.hset("hq:run:run", "state", "active")
    ledger.client.set("hq:results:bytes", 1 << 40)
    assert take(ledger, job.trajectory_id).verdict == "none"
    assert ledger.client.zcard("hq:delayed") == 0


def test_a_job_that_an_older_version_took_back_is_charged_to_its_leaf(ledger):
    [job] = send(ledger)
    begun = take(ledger)
    # It leaves the field `leaf` as it was, and sends a message without a place in a leaf.
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", mapping={"state": "queued", "owner": ""})
    ledger.client.hincrby("hq:run:run", "running", -1)
    ledger.client.zrem("hq:leases", job.trajectory_id)
    again = take(ledger, job.trajectory_id)
    assert (again.verdict, again.epoch) == ("run", begun.epoch + 1)
    assert set(ledger.client.hkeys("hq:sched:running")) == {LEAF.encode()}
    assert ledger.client.zrange("hq:sched:leaves", 0, -1) == [LEAF.encode()]
    assert publish(ledger, make_record(job, epoch=again.epoch)) == "group"


def test_a_retry_that_an_older_mover_sends_begins_by_its_message(ledger):
    [job] = send(ledger)
    begun = take(ledger)
    ledger.requeue(Claim(begun.trajectory_id, begun.epoch), owner="w1", delay_s=30.0)
    assert take(ledger, job.trajectory_id).verdict == "none"
    # It claims the job for ten seconds, and puts it into no leaf.
    ledger.client.zincrby("hq:delayed", -20, job.trajectory_id)
    assert take(ledger, job.trajectory_id).verdict == "run"
