"""Which of the waiting jobs a free slot gets."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from ledger_steps import enqueue, publish
from records import make_job, make_record

from hermes_queue.ledger import Claim, Runs
from hermes_queue.ledger.answers import RunPart
from hermes_queue.ledger.cancelling import cancel
from hermes_queue.ledger.scheduling import Scheduler, Shares
from hermes_queue.ledger.waiting import next_waiting
from hermes_queue.wire.names import make_ids

nonces = itertools.count()


def jobs(run="run", count=4, **fields):
    """Jobs of groups of one."""
    made = []
    for n in range(count):
        group, name = make_ids(run, f"i{n}", 0)
        job = make_job(run_id=run, instance=f"i{n}", **fields)
        made.append(job.model_copy(update={"group_id": group, "trajectory_id": name}))
    return made


def send(ledger, made, **part):
    accepted = ledger.enqueue(made[0].run_id, made, config=None, part=RunPart(**part))
    ledger.published([job.trajectory_id for job in accepted], claim=accepted.claim)
    return made


def take(ledger, *lanes, named="gone.x.0", owner="w1", nonce=None, slot=None):
    number = next(nonces)
    return ledger.begin(
        named,
        1,
        owner=owner,
        lease_s=60.0,
        nonce=nonce or str(number),
        lanes=lanes or ("train",),
        slot=number if slot is None else slot,
    )


def taken(ledger, count, *lanes):
    """Run ids of the next jobs, which stay running."""
    found = [take(ledger, *lanes) for _ in range(count)]
    return [begun.trajectory_id.split(".")[0] for begun in found if begun.verdict == "run"]


def end(ledger, begun, made):
    [job] = [each for each in made if each.trajectory_id == begun.trajectory_id]
    return publish(ledger, make_record(job, epoch=begun.epoch))


def test_a_message_brings_the_job_that_is_next_whatever_it_names(ledger):
    first, second = send(ledger, jobs(count=2))
    begun = take(ledger, named=second.trajectory_id)
    assert (begun.verdict, begun.trajectory_id) == ("run", first.trajectory_id)
    assert take(ledger, named=second.trajectory_id).trajectory_id == second.trajectory_id
    assert take(ledger, named=second.trajectory_id).verdict == "busy"


def test_a_call_that_is_repeated_gets_the_job_that_it_got(ledger):
    send(ledger, jobs(count=3))
    once = take(ledger, nonce="n", slot=7)
    assert take(ledger, nonce="n", slot=7) == once
    assert take(ledger, nonce="m", slot=8).trajectory_id != once.trajectory_id


def test_teams_share_by_weight_and_runs_share_what_their_team_has(ledger):
    Shares(ledger).change("team", "big", {"weight": 3})
    send(ledger, jobs("a", 40), team="big")
    send(ledger, jobs("b", 40), team="big")
    send(ledger, jobs("c", 40), team="small")
    assert Counter(taken(ledger, 40)) == {"a": 15, "b": 15, "c": 10}


def test_a_run_has_its_weight_among_those_of_its_team(ledger):
    send(ledger, jobs("a", 40), weight=4)
    send(ledger, jobs("b", 40), weight=1)
    assert Counter(taken(ledger, 20)) == {"a": 16, "b": 4}


def test_envs_of_a_run_share_it(ledger):
    send(ledger, jobs(count=10))
    other = [
        job.model_copy(update={"trajectory_id": name, "group_id": group})
        for job, (group, name) in zip(
            jobs(count=10, env="chat"),
            (make_ids("run", f"j{n}", 0) for n in range(10)),
            strict=True,
        )
    ]
    send(ledger, other)
    ids = [take(ledger).trajectory_id for _ in range(8)]
    assert sum(name in {job.trajectory_id for job in other} for name in ids) == 4


def test_who_used_more_slot_time_waits(ledger):
    made = send(ledger, jobs("long", 20)) + send(ledger, jobs("short", 20))
    begun = [take(ledger) for _ in range(4)]
    for each in begun:
        if each.trajectory_id.startswith("long"):  # as if it had run for an hour
            key = f"hq:traj:{each.trajectory_id}"
            since, rest = ledger.client.hget(key, "leaf").decode().split(" ", 1)
            ledger.client.hset(key, "leaf", f"{float(since) - 3600:.3f} {rest}")
        end(ledger, each, made)
    found = taken(ledger, 12)
    assert found[:2].count("long") <= 1
    assert found.count("short") >= 10


def test_within_a_run_the_lower_priority_number_comes_first_and_age_counts_against_it(ledger):
    late, soon = jobs(count=2)
    send(ledger, [late.model_copy(update={"priority": 9})])
    send(ledger, [soon.model_copy(update={"priority": 0})])
    leaf = "hq:sched:jobs:train||run|gsm8k"
    assert ledger.client.zrange(leaf, 0, -1)[0] == soon.trajectory_id.encode()
    ledger.client.zincrby(leaf, -9 * 900 - 60, late.trajectory_id)  # it came so long ago
    assert take(ledger).trajectory_id == late.trajectory_id


def test_members_of_a_group_that_has_begun_come_before_other_groups(ledger):
    first = [make_job(instance="a", sample=n, size=3) for n in range(3)]
    urgent = [make_job(instance="b", sample=n, size=3, priority=0) for n in range(3)]
    enqueue(ledger, *first)
    began = take(ledger).trajectory_id
    enqueue(ledger, *urgent)
    names = [began, take(ledger).trajectory_id, take(ledger).trajectory_id]
    assert sorted(names) == sorted(job.trajectory_id for job in first)


def test_what_is_handed_back_comes_first(ledger):
    send(ledger, jobs(count=3))
    begun = take(ledger)
    ledger.requeue(Claim(begun.trajectory_id, begun.epoch), owner="w1")
    claim, due = ledger.due()
    ledger.published([job.trajectory_id for job in due], claim=claim)
    assert take(ledger).trajectory_id == begun.trajectory_id


def test_an_eval_lane_goes_first_until_it_has_had_its_share(ledger):
    send(ledger, jobs("t", 40))
    send(ledger, jobs("e", 40, lane="eval"))
    found = taken(ledger, 40, "train", "eval")
    assert found[0] == "e"
    assert found.count("e") == 10
    assert len(taken(ledger, 60, "eval")) == 30, "alone it may have all"


def test_lanes_without_a_share_go_in_the_order_of_the_worker(ledger):
    send(ledger, jobs("a", 3, lane="a"))
    send(ledger, jobs("b", 3, lane="b"))
    assert taken(ledger, 6, "b", "a") == ["b"] * 3 + ["a"] * 3


def test_lanes_of_one_order_share_by_weight(ledger):
    shares = Shares(ledger)
    shares.change("lane", "a", {"weight": 3, "order": 1})
    shares.change("lane", "b", {"order": 1})
    send(ledger, jobs("a", 30, lane="a"))
    send(ledger, jobs("b", 30, lane="b"))
    assert Counter(taken(ledger, 20, "b", "a")) == {"a": 15, "b": 5}


@pytest.mark.parametrize("kind", ["team", "run", "env", "lane", "fleet"])
def test_no_more_run_at_once_than_was_set(ledger, kind):
    names = {"team": "t", "run": "run", "env": "gsm8k", "lane": "train", "fleet": ""}
    Shares(ledger).change(kind, names[kind], {"max_running": 2})
    made = send(ledger, jobs(count=4), team="t")
    begun = [take(ledger, named=made[3].trajectory_id) for _ in range(3)]
    assert begun[2].verdict == "none"
    assert sum(each.verdict == "run" for each in begun) == 2
    end(ledger, begun[0], made)
    Scheduler(ledger).tick(["train"], every_s=0)
    assert take(ledger).verdict == "run"
    assert take(ledger, named=made[3].trajectory_id).verdict == "none"


def test_what_a_run_is_enqueued_with_bounds_it(ledger):
    made = send(ledger, jobs(count=3), max_running=1)
    begun = take(ledger)
    assert take(ledger, named=made[1].trajectory_id).verdict == "none"
    end(ledger, begun, made)
    assert take(ledger).verdict == "run"


def test_an_env_of_which_none_may_run_waits_and_others_go_on(ledger):
    shares = Shares(ledger)
    shares.change("env", "gsm8k", {"max_running": 0})
    send(ledger, jobs("held", 2))
    send(ledger, jobs("other", 2, env="chat"))
    assert taken(ledger, 4) == ["other", "other"]
    shares.change("env", "gsm8k", {"max_running": None})
    Scheduler(ledger).tick(["train"], every_s=0)
    assert taken(ledger, 4) == ["held", "held"]


def test_a_slot_that_becomes_free_at_a_limit_sends_a_message(ledger):
    made = send(ledger, jobs(count=3), max_running=1)
    begun = take(ledger)
    take(ledger, named=made[1].trajectory_id)
    assert Scheduler(ledger).tick(["train"], every_s=0)[1] == 0, "none could be used"
    end(ledger, begun, made)
    assert ledger.client.llen("hq:v1.train") == 1


@pytest.mark.parametrize(("kind", "name"), [("team", "t"), ("lane", "train"), ("fleet", "")])
def test_a_quota_of_slot_hours_ends_with_its_window(ledger, kind, name):
    Shares(ledger).change(kind, name, {"quota_h": 0.5, "window_s": 3600})
    made = send(ledger, jobs(count=4), team="t")
    begun = take(ledger)
    key = f"hq:traj:{begun.trajectory_id}"
    since, rest = ledger.client.hget(key, "leaf").decode().split(" ", 1)
    ledger.client.hset(key, "leaf", f"{float(since) - 1900:.3f} {rest}")
    end(ledger, begun, made)
    assert take(ledger, named=made[1].trajectory_id).verdict == "none"
    assert Scheduler(ledger).tick(["train"], every_s=0)[1] == 0, "none could be used"
    [spent] = ledger.client.keys("hq:sched:spent:*")
    assert 0 < ledger.client.ttl(spent) <= 7200
    ledger.client.delete(spent)  # as in the next window
    Scheduler(ledger).tick(["train"], every_s=0)
    assert take(ledger).verdict == "run"


def test_a_lane_that_is_paused_is_passed_over(ledger):
    send(ledger, jobs("a", 2, lane="a"))
    send(ledger, jobs("b", 2, lane="b"))
    ledger.client.hset("hq:lane:a", mapping={"state": "open", "until": 9e9, "open_s": 60})
    assert taken(ledger, 2, "a", "b") == ["b", "b"]
    assert ledger.client.zcard("hq:delayed") == 0, "no job has moved"


def test_cancelled_and_paused_runs_give_way(ledger):
    send(ledger, jobs("a", 2))
    send(ledger, jobs("b", 2))
    Runs(ledger).pause("a")
    assert taken(ledger, 2) == ["b", "b"]
    assert ledger.client.scard("hq:run:a:parked") == 2
    assert take(ledger).verdict == "unknown", "none is left"
    Runs(ledger).resume("a")
    claim, due = ledger.due()
    ledger.published([job.trajectory_id for job in due], claim=claim)
    assert taken(ledger, 2) == ["a", "a"]


def test_a_cancelled_job_is_taken_by_its_own_message_alone(ledger):
    first, second = send(ledger, jobs(count=2))
    cancel(ledger, trajectories=[first.trajectory_id], reason="by hand")
    assert take(ledger).trajectory_id == second.trajectory_id
    [due] = ledger.due()[1]
    assert due.cancel
    named = ledger.begin(first.trajectory_id, 1, owner="w1", lease_s=9, nonce="c")
    assert (named.verdict, named.cancel) == ("run", "by hand")


def test_jobs_that_are_next_can_be_looked_at(ledger):
    send(ledger, jobs("a", 3))
    send(ledger, jobs("b", 3, lane="b"))
    found = next_waiting(ledger, ["train", "b", "none"], most=4)
    assert Counter(name.split(".")[0] for name in found) == {"a": 2, "b": 2}
    assert take(ledger, "b").trajectory_id in found
