"""A producer's junk in what only its own jobs need: the lane goes on with those of others."""

from __future__ import annotations

import itertools

import pytest
import redis
from ledger_steps import publish
from records import make_job, make_record

from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.scheduling import Scheduler
from hermes_queue.wire.names import make_ids

nonces = itertools.count()


def send(ledger, run, count=1, lane="train"):
    made = []
    for n in range(count):
        group, name = make_ids(run, f"i{n}", 0)
        job = make_job(run_id=run, instance=f"i{n}", lane=lane)
        made.append(job.model_copy(update={"group_id": group, "trajectory_id": name}))
    accepted = ledger.enqueue(run, made, config=None)
    ledger.published([job.trajectory_id for job in accepted], claim=accepted.claim)
    return made


def take(ledger, named="gone.x.0", lane="train"):
    number = next(nonces)
    return ledger.begin(
        named, 1, owner="w1", lease_s=60.0, nonce=str(number), lanes=(lane,), slot=number
    )


def put(client, key, fields):
    client.delete(key) if fields is None else client.hset(key, mapping=fields)
    if fields is None:
        client.set(key, "x")


JUNK = {
    "a run that is no hash": ("hq:run:bad", None),
    "a group that is no hash": ("hq:group:{group}", None),
    "a job that is no hash": ("hq:traj:{id}", None),
    "a job without an epoch": ("hq:traj:{id}", {"epoch": "x"}),
    "a job in no lane": ("hq:traj:{id}", {"lane": "a b"}),
    "a budget that is no number": ("hq:run:bad", {"budget:tokens": "x"}),
    "a pace that is no hash": ("hq:run:bad:ahead", None),
    "parked jobs that are no set": ("hq:run:bad:parked", None),
    "a group of an odd size": ("hq:group:{group}", {"planned": "x"}),
    "a count that is no number": ("hq:run:bad", {"running": "x"}),
    "deaths that are no number": ("hq:traj:{id}", {"quarantine_deaths": "x"}),
}


@pytest.mark.parametrize(("key", "fields"), JUNK.values(), ids=JUNK)
def test_junk_of_one_run_keeps_no_job_of_another_from_its_slot(ledger, key, fields):
    [bad] = send(ledger, "bad")
    if key.endswith("ahead"):
        ledger.client.hset("hq:run:bad", "max_ahead", 1)
    if key.endswith("parked"):
        ledger.client.hset("hq:run:bad", "state", "paused")
    put(ledger.client, key.format(id=bad.trajectory_id, group=bad.group_id), fields)
    good = send(ledger, "good", 3)
    ledger.client.zadd("hq:sched:open:train|", {"bad": 0, "good": 1})
    begun = set()
    for job in (*good, good[0], good[0]):
        try:
            found = take(ledger, job.trajectory_id)
        except redis.ResponseError:
            continue
        begun |= {found.trajectory_id} if found.verdict == "run" else set()
    assert {job.trajectory_id for job in good} <= begun


def test_an_entry_of_a_leaf_that_is_no_id_stops_nobody(ledger):
    [job] = send(ledger, "run")
    leaf = "train||run|gsm8k"
    ledger.client.hset("hq:traj:nodots", mapping={"state": "queued", "leaf": leaf, "job": "{}"})
    ledger.client.zadd(f"hq:sched:jobs:{leaf}", {"nodots": -9e9, '"}]': -8e9})
    assert take(ledger).trajectory_id == job.trajectory_id


def test_messages_are_sent_for_a_lane_whose_first_entry_is_no_id(ledger):
    [job] = send(ledger, "run")
    ledger.client.zadd("hq:sched:jobs:train||run|gsm8k", {'"}]': -9e9, "x" * 5000: -8e9})
    Scheduler(ledger).tick(("train",), every_s=0)
    [message] = ledger.client.lrange("hq:v1.train", 0, -1)
    assert job.trajectory_id.encode() in message


def test_messages_are_sent_for_a_lane_with_many_empty_branches(ledger):
    send(ledger, "run")
    ledger.client.zadd("hq:sched:open:train", {f"empty{n}": -n for n in range(300)})
    for _ in range(10):
        Scheduler(ledger).tick(("train",), every_s=0)
    assert ledger.client.llen("hq:v1.train") == 1


def test_jobs_of_a_lane_with_a_long_name_are_found(ledger):
    lane = "l" * 250
    [job] = send(ledger, "run", lane=lane)
    assert take(ledger, job.trajectory_id, lane).verdict == "run"


def test_a_job_that_cannot_begin_reserves_nothing(ledger):
    [job] = send(ledger, "run")
    set_budgets(ledger, "run", {"tokens": 1000})
    SharedBudgets(ledger).set("env:gsm8k", {"tokens": 1000})
    ledger.client.hset(
        f"hq:traj:{job.trajectory_id}",
        mapping={
            "job": '{"env":"gsm8k","limits":{"max_tokens":9}}',
            "epoch": 1,
            "unseen_deaths": "x",
        },
    )
    with pytest.raises(redis.ResponseError):
        take(ledger)
    assert not ledger.client.hexists("hq:run:run", "reserved:tokens")
    assert not ledger.client.hexists("hq:budget:env:gsm8k", "running")


def usage(ledger, lane="train"):
    """Slot-seconds that a lane has used, as the scheduler remembers them."""
    known = ledger.client.hmget("hq:sched", f"u|{lane}", "at")
    point, at = (float(value or 0) for value in known)
    return 2 ** min(1000.0, (point - at) / 1800)


def ended_after(ledger, junk):
    [job] = send(ledger, "run")
    begun = take(ledger)
    junk(f"hq:traj:{job.trajectory_id}")
    Scheduler(ledger).tick(("train",), every_s=0)
    publish(ledger, make_record(job, epoch=begun.epoch))
    Scheduler(ledger).tick(("train",), every_s=0)


def test_junk_in_the_tree_charges_nobody_for_what_was_not_used(ledger):
    def junk(_):
        for kind in ("open", "shut"):
            ledger.client.delete(f"hq:sched:{kind}:train|")
            ledger.client.set(f"hq:sched:{kind}:train|", "x")

    ended_after(ledger, junk)
    assert usage(ledger) < 1000


def test_a_lost_count_of_running_jobs_charges_nobody_for_what_was_not_used(ledger):
    ended_after(ledger, lambda _: ledger.client.delete("hq:sched:running"))
    assert usage(ledger) < 1000


@pytest.mark.parametrize("junk", ["nan nan", "inf inf", "-inf -inf", "0 0", "x x"])
def test_a_job_that_says_junk_of_its_start_leaves_the_usage_of_others_readable(ledger, junk):
    leaf = "train||run|gsm8k"
    ended_after(ledger, lambda traj: ledger.client.hset(traj, "leaf", f"{junk} 0 {leaf}"))
    assert usage(ledger) < 4e6
    count, rest = ledger.client.hget("hq:sched:running", leaf).split()
    assert count == b"0"
    assert abs(float(rest)) < 1e12
