"""Jobs that may not begin, and those that wait behind them."""

from __future__ import annotations

from collections import Counter

import pytest
from ledger_steps import enqueue, publish, take
from records import make_job, make_record

from hermes_queue.ledger import Claim, Runs
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.answers import RunPart
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.fleet.pacing import set_pace
from hermes_queue.ledger.scheduling import Scheduler, Shares

LEAF = "train||run|gsm8k"
OPEN = "hq:sched:open:train"


def send(ledger, run="run", count=1, team="", **fields):
    made = [make_job(run, f"i{n}", **fields) for n in range(count)]
    accepted = ledger.enqueue(run, made, config=None, part=RunPart(team=team))
    ledger.published([job.trajectory_id for job in accepted], claim=accepted.claim)
    return made


def tick(ledger):
    return Scheduler(ledger).tick(("train",), every_s=0)


def put_next(ledger, run):
    """Have it be next of all runs without a team."""
    ledger.client.zadd("hq:sched:open:train|", {run: 0}, xx=True)


def test_a_run_whose_budget_is_reserved_keeps_no_other_from_its_slot(ledger):
    send(ledger, "full", 60, limits={"max_tokens": 10})
    set_budgets(ledger, "full", {"tokens": 15})
    assert take(ledger).verdict == "run"
    send(ledger, "other", 3)
    put_next(ledger, "full")
    assert [take(ledger).trajectory_id.split(".")[0] for _ in range(3)] == ["other"] * 3
    assert ledger.client.zcard("hq:delayed") == 1, "only one was looked at"


def test_a_run_whose_budget_has_room_again_goes_on(ledger):
    made = send(ledger, "full", 3, limits={"max_tokens": 10})
    set_budgets(ledger, "full", {"tokens": 15})
    begun = take(ledger)
    assert take(ledger).verdict == "held"
    assert take(ledger).verdict == "unknown", "nobody is looked at"
    assert publish(ledger, make_record(made[0], epoch=begun.epoch)) == "group"
    assert tick(ledger)[1] == 0, "no messages are sent for it"
    assert 0 < ledger.client.ttl("hq:sched:blocked:held|train||full|gsm8k") <= 5
    ledger.client.delete("hq:sched:blocked:held|train||full|gsm8k")
    tick(ledger)
    assert take(ledger).verdict == "run"


def pause(ledger):
    Runs(ledger).pause("big")


def pace(ledger):
    set_pace(ledger, "big", 1, readers=["trainer"])
    ledger.client.hset("hq:run:big:ahead", "another", "")


def spend(ledger):
    SharedBudgets(ledger).set("team:big", {"tokens": 1})
    ledger.client.hset("hq:budget:team:big", mapping={"spent:tokens": 2, "warned": "-"})


@pytest.mark.parametrize("hold", [pause, pace, spend])
def test_jobs_that_are_set_aside_do_not_use_up_the_messages_of_others(ledger, hold):
    send(ledger, "big", 30, team="big")
    hold(ledger)
    send(ledger, "other", 2, team="other")
    ledger.client.zadd("hq:sched:open:train", {"big": 0, "other": 1})
    begun = Counter(take(ledger).trajectory_id.split(".")[0] for _ in range(4))
    assert begun["other"] == 2
    assert ledger.client.zcard("hq:sched:jobs:train|big|big|gsm8k") == 0


@pytest.mark.parametrize(
    ("hold", "key"), [(pace, "hq:run:big:held"), (spend, "hq:budget-held:team:big")]
)
def test_jobs_that_one_call_sets_aside_keep_their_order(ledger, hold, key):
    made = send(ledger, "big", 8, team="big")
    hold(ledger)
    take(ledger)
    assert [name.decode() for name in ledger.client.zrange(key, 0, -1)] == [
        job.trajectory_id for job in made
    ]


def test_samples_that_are_sent_after_their_group_has_begun_come_before_other_groups(ledger):
    samples = [make_job(instance="a", sample=n, size=3) for n in range(3)]
    enqueue(ledger, samples[0])
    enqueue(ledger, *(make_job(instance=f"b{n}") for n in range(3)))
    assert take(ledger).trajectory_id == samples[0].trajectory_id
    enqueue(ledger, *samples[1:])
    names = [take(ledger).trajectory_id, take(ledger).trajectory_id]
    assert names == [job.trajectory_id for job in samples[1:]]


def test_all_members_of_a_large_group_come_before_other_groups(ledger):
    large = [make_job(instance="a", sample=n, size=1020) for n in range(1020)]
    enqueue(ledger, *large, make_job(instance="b"))
    assert take(ledger).trajectory_id == large[0].trajectory_id
    enqueue(ledger, make_job(instance="c", priority=0))
    names = ledger.client.zrange(f"hq:sched:jobs:{LEAF}", 0, 1018)
    assert {name.decode() for name in names} == {job.trajectory_id for job in large[1:]}


def test_no_messages_are_sent_for_jobs_that_may_not_begin(ledger):
    Shares(ledger).change("env", "gsm8k", {"max_running": 0})
    for run in ("a", "b", "c"):
        send(ledger, run, 2)
    send(ledger, "free", 3, env="chat")
    assert tick(ledger) == (4, 3)
    assert [take(ledger).trajectory_id[:4] for _ in range(3)] == ["free"] * 3
    ledger.client.delete("hq:v1.train")
    assert tick(ledger)[1] == 0
    Shares(ledger).reset("env", "gsm8k")
    tick(ledger)
    assert take(ledger).verdict == "run"


def test_a_job_that_waits_for_a_retry_begins_neither_early_nor_beyond_a_limit(ledger):
    [job] = send(ledger)
    begun = take(ledger)
    ledger.requeue(Claim(begun.trajectory_id, begun.epoch), owner="w1", delay_s=60.0)
    assert take(ledger, job.trajectory_id).verdict == "none", "a message of it was still there"
    Shares(ledger).change("run", "run", {"max_running": 0})
    ledger.client.zadd("hq:delayed", {job.trajectory_id: 1})
    ledger.due()
    assert take(ledger, job.trajectory_id).verdict == "none"


def test_a_job_that_is_begun_again_by_its_name_counts_as_running(ledger):
    [job] = send(ledger)
    begun = take(ledger)
    ledger.requeue(Claim(begun.trajectory_id, begun.epoch), owner="w1")
    again = ledger.begin(job.trajectory_id, 1, owner="w1", lease_s=60.0, nonce="again")
    assert again.verdict == "run"
    assert ledger.client.hget("hq:sched:running", LEAF).split()[0] == b"1"
    assert publish(ledger, make_record(job, epoch=again.epoch)) == "group"
    assert ledger.client.hget("hq:sched:running", LEAF).split()[0] == b"0"


def test_what_ran_when_the_last_limits_were_removed_does_not_count_when_new_ones_are_set(ledger):
    shares = Shares(ledger)
    shares.change("env", "gsm8k", {"max_running": 2})
    made = send(ledger, "old", 2)
    begun = [take(ledger), take(ledger)]
    shares.reset("env", "gsm8k")
    for each, job in zip(begun, made, strict=True):
        publish(ledger, make_record(job, epoch=each.epoch))
    ledger.client.zadd("hq:sched:leaves", {"train||old|gsm8k": 1})  # unused for more than a day
    tick(ledger)
    shares.change("env", "gsm8k", {"max_running": 2})
    send(ledger, "new", 3)
    assert [take(ledger).verdict for _ in range(3)].count("run") == 2


def test_teams_share_what_an_env_may_have_however_many_runs_they_have(ledger):
    Shares(ledger).change("env", "gsm8k", {"max_running": 4})
    jobs = {}
    for n in range(20):
        jobs |= {job.trajectory_id: job for job in send(ledger, f"many{n}", 4, team="many")}
    jobs |= {job.trajectory_id: job for job in send(ledger, "one", 30, team="one")}
    running, found = [], Counter()

    def fill():
        """Until all are shut at the limit, as those are for whom a slot becomes free."""
        while (begun := take(ledger)).verdict == "run" or ledger.client.exists(OPEN):
            if begun.verdict == "run":
                running.append(begun)
                found[begun.trajectory_id.split(".")[0].rstrip("0123456789")] += 1

    fill()
    for _ in range(30):
        begun = running.pop(0)
        publish(ledger, make_record(jobs[begun.trajectory_id], epoch=begun.epoch))
        fill()
        tick(ledger)
    assert sum(found.values()) == 34
    assert abs(found["one"] - found["many"]) <= 4
