"""Keys that a producer may write, of another type: every job goes on, and none is counted twice."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import suppress

import pytest
import redis
from ledger_steps import LEASE, SWEEP, age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.broker.enqueue import publish_due, publish_messages
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace import scripts
from hermes_queue.ledger import Claim, DueJob, Runs, Spent
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.cancelling import cancel
from hermes_queue.ledger.fleet.lanes import note_lanes
from hermes_queue.ledger.fleet.tally import totals
from hermes_queue.ledger.run_lock import kept_lock
from hermes_queue.ledger.scheduling import Scheduler

nonces = itertools.count()


def junk(ledger, *names):
    for name in names:
        ledger.client.delete(f"hq:{name}")
        ledger.client.set(f"hq:{name}", "x")


def take(ledger):
    n = next(nonces)
    return ledger.begin(
        "gone.x.0", 1, owner="w1", lease_s=60.0, nonce=f"t{n}", lanes=("train",), slot=n
    )


def recovered(ledger):
    """What a whole round finds."""
    found = []
    ledger.client.hset("hq:recovery", mapping={"at": 0})
    more = True
    while more:
        _, names, more = ledger.recover(lease_s=30.0)
        found += names
    return found


def upkeep(ledger):
    """What workers do every few seconds."""
    recovered(ledger)
    ledger.reconcile("train", age_s=0.0)
    publish_due(ledger)
    Scheduler(ledger).tick(("train",), every_s=0)


def end_all(ledger, jobs):
    """Have all jobs that wait run; the ids of those that have ended."""
    by_id = {job.trajectory_id: job for job in jobs}
    ended = []
    for _ in range(len(jobs) + 2):
        begun = take(ledger)
        if begun.verdict == "run":
            record = make_record(by_id[begun.trajectory_id]).model_copy(
                update={"epoch": begun.epoch}
            )
            publish(ledger, record)
            ended.append(begun.trajectory_id)
    return ended


def ways(ledger, job, begun):
    """The ways in which a running job waits again."""
    claim = Claim(job.trajectory_id, begun.epoch)

    def isolate():
        item = {"letter": "1-0", "until": time.time() + 60}
        ledger.client.hset("hq:poison", "sha", json.dumps(item))
        fields = {"owner": "w1", "epoch": claim.epoch, "item": "sha", "run_id": job.run_id}
        assert ledger.call("isolate", id=job.trajectory_id, **fields)

    def handover():
        ledger.client.zadd("hq:graders:train", {"host": time.time() + 60})
        fields = {"owner": "w1", "epoch": claim.epoch, "run_id": job.run_id, "lane": "train"}
        sent = {"handover": "h", "snapshot": "", "only_host": "", "most": 9, "ttl_s": 60}
        spent = {"used_s": 1, "cost_usd": "0", "tokens": 0, "body": "work", "token": ""}
        answer = ledger.call("handover", id=job.trajectory_id, **fields, **sent, **spent)
        assert answer.verdict == b"ok"

    def sweep():
        ledger.sweep(**SWEEP)
        age_lease(ledger, job)
        assert ledger.sweep(**SWEEP) == [job.trajectory_id]

    def requeue():
        assert ledger.requeue(claim, owner="w1", spent=Spent(3, 0.0))

    return {"requeue": requeue, "isolate": isolate, "handover": handover, "sweep": sweep}


@pytest.mark.parametrize("how", ["requeue", "isolate", "handover", "sweep"])
@pytest.mark.parametrize("key", ["delayed", "waiting", "run:run", "traj-fields"])
def test_a_job_that_waits_again_is_not_lost(ledger, how, key):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    again = ways(ledger, job, begun)[how]
    if key == "traj-fields":
        fields = {"used": "x", "deaths": "x", "noted": "{", "journal": "1"}
        ledger.client.hset(f"hq:traj:{job.trajectory_id}", mapping=fields)
    else:
        junk(ledger, key)
    again()
    assert ledger.client.hget(f"hq:traj:{job.trajectory_id}", "state") == b"queued"
    assert ledger.client.zscore("hq:delayed", job.trajectory_id) is not None
    assert ledger.client.zcard("hq:leases") == 0


@pytest.mark.parametrize("key", ["delayed", "waiting"])
def test_every_job_goes_on_after_junk_and_ends_once(ledger, key):
    jobs = [make_job(instance=f"i{n}") for n in range(8)]
    enqueue(ledger, *jobs)
    begun = [take(ledger) for _ in range(4)]
    for each in begun[:2]:
        ledger.requeue(Claim(each.trajectory_id, each.epoch), owner="w1", delay_s=3600)
    junk(ledger, key)
    each = begun[2]
    ledger.requeue(Claim(each.trajectory_id, each.epoch), owner="w1")
    upkeep(ledger)
    upkeep(ledger)
    running = {begun[3].trajectory_id}
    ended = end_all(ledger, jobs)
    late = {each.trajectory_id for each in begun[:2]} if key == "waiting" else set()
    assert sorted(ended) == sorted({job.trajectory_id for job in jobs} - running - late)
    assert ledger.run_status("run").finished == len(ended)
    assert ledger.client.zcard("hq:leases") == 1
    assert totals(ledger)["junk_keys",] >= 1


def test_jobs_that_another_program_took_out_of_everything_are_found(ledger):
    jobs = [make_job(instance=f"i{n}") for n in range(3)]
    enqueue(ledger, *jobs)
    begun = take(ledger)
    for key in ledger.client.keys("hq:sched:*"):
        ledger.client.delete(key)
    ledger.client.delete("hq:delayed", "hq:waiting", "hq:leases")
    assert sorted(recovered(ledger)) == sorted(job.trajectory_id for job in jobs)
    assert recovered(ledger) == []
    assert ledger.client.zscore("hq:leases", begun.trajectory_id)
    upkeep(ledger)
    assert len(end_all(ledger, jobs)) == 2


def test_jobs_that_wait_where_they_should_are_left_there(ledger):
    SharedBudgets(ledger).set("team:poor", {"tokens": 1})
    parked, held, poor, waits = (make_job(run) for run in ("parked", "held", "poor", "waits"))
    enqueue(ledger, parked)
    Runs(ledger).pause("parked")
    assert begin(ledger, parked).verdict == "paused"
    enqueue(ledger, held)
    ledger.client.hset("hq:run:held", "max_ahead", 0)
    assert begin(ledger, held).verdict == "paced"
    enqueue(ledger, poor)
    ledger.client.hset("hq:run:poor", "team", "poor")
    ledger.client.hset("hq:budget:team:poor", "spent:tokens", 5)
    assert begin(ledger, poor).verdict == "over_budget"
    enqueue(ledger, waits)
    assert recovered(ledger) == []
    assert ledger.client.zcard("hq:delayed") == 0


def test_a_search_goes_through_all_keys_a_part_at_a_time(ledger, monkeypatch):
    monkeypatch.setattr("hermes_queue.ledger.ledger.RECOVERED_AT_ONCE", 5)
    jobs = [make_job(instance=f"i{n}") for n in range(40)]
    enqueue(ledger, *jobs)
    junk(ledger, "delayed")
    ledger.due()
    for job in jobs:
        ledger.client.zrem("hq:waiting", job.trajectory_id)
        ledger.client.zrem("hq:sched:jobs:train||run|gsm8k", job.trajectory_id)
    assert ledger.recover(lease_s=30.0)[0] == "hq:delayed"
    found, more, calls = ledger.client.zcard("hq:delayed"), True, 0
    while more:
        _, names, more = ledger.recover(lease_s=30.0)
        found, calls = found + len(names), calls + 1
    assert (found, calls > 1) == (40, True)
    assert ledger.recover(lease_s=30.0) == ("", [], False), "not again at once"


@pytest.mark.parametrize("key", ["run:run", "run:run:parked", "run:run:ahead", "run:run:held"])
def test_results_of_a_run_whose_keys_are_junk_are_published(ledger, key):
    jobs = [make_job(sample=n, size=2) for n in range(2)]
    enqueue(ledger, *jobs)
    ledger.client.hset("hq:run:run", "max_ahead", 3)
    begin(ledger, jobs[0])
    begin(ledger, jobs[1])
    junk(ledger, key)
    assert publish(ledger, make_record(jobs[0])) == "ok"
    assert publish(ledger, make_record(jobs[1])) == "group"


GROUPS = {
    "no policy": {"policy": "["},
    "a policy of texts": {"policy": '{"max_refills": "x", "stop_after_equal": "y"}'},
    "counters that are none": {"measured": "x", "failed": "y", "refills": "z", "requeues": "-"},
    "more samples than anybody has": {"planned": "1" + 300 * "0"},
    "a member that is none": {"m:7": "["},
    "a size that is none": {"size": "x"},
}


@pytest.mark.parametrize("fields", GROUPS.values(), ids=GROUPS)
def test_a_trajectory_whose_group_is_junk_ends(ledger, fields):
    jobs = [make_job(sample=n, size=2) for n in range(2)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
    publish(ledger, make_record(jobs[0]))
    ledger.client.hset(f"hq:group:{jobs[0].group_id}", mapping=fields)
    assert publish(ledger, make_record(jobs[1])) in ("ok", "group", "surplus")
    assert ledger.client.zcard("hq:leases") == 0


def test_a_run_whose_count_is_none_strands_no_job_that_begins(ledger):
    job = make_job()
    enqueue(ledger, job)
    ledger.client.hset("hq:run:run", "running", "x")
    assert begin(ledger, job).verdict == "run"
    assert ledger.client.zscore("hq:leases", job.trajectory_id)


def test_a_job_with_times_and_versions_that_are_none_begins(ledger):
    job = make_job()
    enqueue(ledger, job)
    fields = {"used": "x", "queued": "y", "booked": "z"}
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", mapping=fields)
    ledger.client.hset("hq:run:run", "policy_version", "newest")
    begun = begin(ledger, job)
    assert (begun.verdict, begun.used_s, begun.policy_version) == ("run", 0.0, None)


def test_a_job_whose_deaths_are_none_is_not_left_running(ledger):
    job = make_job()
    enqueue(ledger, job)
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", mapping={"begun": "1", "unseen_deaths": "x"})
    with suppress(redis.ResponseError):
        begin(ledger, job)
    assert ledger.client.hget(f"hq:traj:{job.trajectory_id}", "state") == b"queued"


def test_a_queue_that_is_no_list_stops_no_other_lane(ledger, caplog):
    train, other = make_job(instance="a"), make_job(instance="b", lane="other")
    junk(ledger, "v1.train", "v1.other.retry", "_kombu.binding.v1.train")
    sent = [DueJob(job.trajectory_id, 1, job.lane, 0) for job in (train, other)]
    assert [each.trajectory_id for each in publish_messages(ledger, sent)] == [other.trajectory_id]
    assert "hq:v1.train" in caplog.text
    enqueue(ledger, train)
    for lane in ("train", "other"):
        ledger.reconcile(lane, age_s=60.0)
    Scheduler(ledger).tick(("train",), every_s=0)
    assert ledger.client.llen("hq:v1.train") == 1
    assert not ledger.client.exists("hq:v1.other.retry", "hq:_kombu.binding.v1.train") or (
        ledger.client.type("hq:_kombu.binding.v1.train") == b"set"
    )


def test_lanes_are_noted_where_junk_was(ledger):
    junk(ledger, "lanes")
    note_lanes(ledger, ["train"])
    assert ledger.client.zrange("hq:lanes", 0, -1) == [b"train"]


def test_other_jobs_are_cancelled_beside_one_that_is_no_hash(ledger):
    jobs = [make_job(sample=n, size=3) for n in range(3)]
    enqueue(ledger, *jobs)
    junk(ledger, f"traj:{jobs[1].trajectory_id}", "waiting", "delayed")
    cancel(ledger, groups=[jobs[0].group_id])
    due = {job.trajectory_id for job in ledger.due()[1]}
    assert due == {jobs[0].trajectory_id, jobs[2].trajectory_id}
    Runs(ledger).cancel("run")
    assert ledger.client.hget(f"hq:traj:{jobs[2].trajectory_id}", "state") == b"cancelled"


def test_a_job_settles_only_in_budgets_that_it_declares(ledger):
    budgets = SharedBudgets(ledger)
    budgets.set("env:gsm8k", {"tokens": 1000})
    budgets.set("team:rich", {"tokens": 1000})
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    traj = f"hq:traj:{job.trajectory_id}"
    born = ledger.client.hget("hq:budget:team:rich", "born").decode()
    mine = ledger.client.hget(traj, "shared").decode()
    forged = mine[:-1] + f',"team:rich":{{"born":"{born}","tokens":900,"cost_usd":0,"slot_s":0}}}}'
    ledger.client.hset(traj, "shared", forged)
    swept(ledger)
    age_lease(ledger, job)
    ledger.sweep(**SWEEP)
    fields = ledger.client.hgetall("hq:budget:team:rich")
    assert not [name for name in fields if name.startswith((b"spent", b"reserved", b"settled"))]
    assert ledger.client.hget("hq:budget:env:gsm8k", "settled") == b"1"


def test_a_lock_that_is_nested_too_deeply_is_none(ledger):
    for depth in (900, 990, 5000, 200_000):
        text = '{"a":' + "[" * depth + "]" * depth + "}"
        ledger.client.hset("hq:run:run", "lock", text)
        with suppress(ConfigurationError):
            kept_lock(ledger, "run")
    with pytest.raises(ConfigurationError, match="has no lock"):
        kept_lock(ledger, "run")


def test_each_script_knows_what_it_removes(ledger):
    healing = [name for name in scripts.names() if "local function healing" in script(name)]
    assert {"begin", "publish", "sweep", "due", "published", "enqueue"} <= set(healing)


def script(name):
    return scripts.script(name).source


def test_leases_go_on_while_keys_are_junk(ledger):
    job = make_job()
    enqueue(ledger, job)
    begun = begin(ledger, job)
    junk(ledger, "delayed", "waiting", "run:run")
    assert ledger.renew([Claim(job.trajectory_id, begun.epoch)], **LEASE) == {}


def test_a_lane_goes_on_although_a_leaf_that_is_junk_is_next_and_no_longer_listed(ledger):
    bad, good = make_job("bad"), make_job("good")
    enqueue(ledger, bad)
    enqueue(ledger, good)
    junk(ledger, "sched:jobs:train||bad|gsm8k", "sched:leaves")
    ledger.client.zadd("hq:sched:open:train|", {"bad": 0, "good": 1})
    upkeep(ledger)
    ended = end_all(ledger, [bad, good])
    assert sorted(ended) == sorted([bad.trajectory_id, good.trajectory_id])


def test_a_run_that_began_at_no_time_is_resumed(ledger):
    enqueue(ledger, make_job())
    Runs(ledger).pause("run")
    ledger.client.hset("hq:run:run", "created", "x")
    Runs(ledger).resume("run")
    assert ledger.client.hget("hq:run:run", "state") == b"active"


@pytest.mark.parametrize("seconds", ['"nan"', '"inf"', "1e999", "-1e999"])
def test_a_group_is_dropped_although_a_members_time_is_none(ledger, seconds):
    policy = {"drop_zero_variance": True}
    jobs = [make_job(sample=n, size=2, group_policy=policy) for n in range(2)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
    publish(ledger, make_record(jobs[0]))
    member = f'["{jobs[0].trajectory_id}","1.0",10,"","1.0",{seconds}]'
    ledger.client.hset(f"hq:group:{jobs[0].group_id}", "m:0", member)
    assert publish(ledger, make_record(jobs[1])) == "dropped"
