"""What may go wrong around the tree of waiting jobs, and what comes right by itself."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from ledger_steps import publish
from records import make_job, make_record

from hermes_queue.broker.pool.screening import read_message
from hermes_queue.ledger import Claim, Runs
from hermes_queue.ledger.scheduling import Scheduler, Shares
from hermes_queue.queues import queue_name
from hermes_queue.wire.ids import of_message

LEAF = "train||run|gsm8k"
nonces = itertools.count()


def send(ledger, count=3, **fields):
    made = [make_job(instance=f"i{n}", **fields) for n in range(count)]
    accepted = ledger.enqueue("run", made, config=None)
    ledger.published([job.trajectory_id for job in accepted], claim=accepted.claim)
    return made


def take(ledger, named="gone.x.0", lanes=("train",)):
    number = next(nonces)
    return ledger.begin(
        named, 1, owner="w1", lease_s=60.0, nonce=str(number), lanes=lanes, slot=number
    )


def running(ledger):
    return int(ledger.client.hget("hq:sched:running", LEAF).split()[0])


def tick(ledger, *lanes):
    return Scheduler(ledger).tick(lanes or ("train",), every_s=0)


def test_a_lane_with_jobs_and_no_message_is_sent_some_which_workers_read(ledger):
    made = send(ledger)
    assert tick(ledger)[1] == 3
    raws = ledger.client.lrange("hq:v1.train", 0, -1)
    messages = [read_message(raw).payload for raw in raws]
    names = [each["headers"]["id"] for each in messages]
    assert len({*names, *(each["properties"]["delivery_tag"] for each in messages)}) == 6
    assert {of_message(name)[0] for name in names} == {made[0].trajectory_id}
    body = json.loads(messages[0]["body"])
    assert body == [[made[0].trajectory_id, 1], {}, {}]
    assert messages[0]["properties"]["delivery_info"]["routing_key"] == queue_name("train")
    assert tick(ledger)[1] == 0, "there are some"


def test_messages_that_nothing_waits_for_are_dropped(ledger):
    [job] = send(ledger, 1)
    assert take(ledger, job.trajectory_id).verdict == "run"
    assert take(ledger, job.trajectory_id).verdict == "busy"
    assert take(ledger, "run.0.0").verdict == "unknown"
    assert tick(ledger)[1] == 0


def test_a_job_of_an_older_version_is_taken_by_its_message(ledger):
    [job] = send(ledger, 1)
    ledger.client.delete(f"hq:sched:jobs:{LEAF}", "hq:sched:open:train")
    ledger.client.hdel(f"hq:traj:{job.trajectory_id}", "leaf")
    begun = take(ledger, job.trajectory_id)
    assert (begun.verdict, begun.trajectory_id) == ("run", job.trajectory_id)
    assert publish(ledger, make_record(job)) == "group"
    assert running(ledger) == 0


def test_slot_time_of_a_job_of_an_older_version_is_charged_and_its_leaf_forgotten(ledger):
    [job] = send(ledger, 1)
    ledger.client.delete(f"hq:sched:jobs:{LEAF}", "hq:sched:open:train", "hq:sched:leaves")
    ledger.client.hdel(f"hq:traj:{job.trajectory_id}", "leaf")
    take(ledger, job.trajectory_id)
    assert tick(ledger)[0] == 1
    Shares(ledger).change("env", "gsm8k", {"max_running": 1})
    assert ledger.client.hget("hq:sched:running", "env|gsm8k") == b"1"
    publish(ledger, make_record(job))
    ledger.client.zadd("hq:sched:leaves", {LEAF: 1})
    tick(ledger)
    assert not ledger.client.hexists("hq:sched:running", LEAF)


def test_a_job_that_an_older_version_began_ends_and_is_not_counted(ledger):
    [job] = send(ledger, 1)
    take(ledger)
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "leaf", LEAF)
    assert publish(ledger, make_record(job)) == "group"
    assert running(ledger) == 1
    tick(ledger)
    assert running(ledger) == 0


KEYS = (
    "hq:sched:leaves",
    f"hq:sched:jobs:{LEAF}",
    "hq:sched:open:train",
    "hq:sched:open:train|",
    "hq:sched:open:train||run",
    "hq:sched:shut:train",
    "hq:sched:shut:train||run",
)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_type_stops_no_job(ledger, key):
    """A producer's user may write these."""
    made = send(ledger)
    begun = take(ledger)
    ledger.client.delete(key)
    ledger.client.set(key, "x")
    first = next(job for job in made if job.trajectory_id == begun.trajectory_id)
    assert publish(ledger, make_record(first)) == "group"
    rest = [job for job in made if job is not first]
    again = take(ledger, rest[0].trajectory_id)
    assert again.verdict in ("run", "none")
    more = make_job(instance="more")
    ledger.enqueue("run", [more], config=None)
    for _ in range(2):
        tick(ledger)
        ledger.reconcile("train", age_s=0.0)
        claim, due = ledger.due()
        ledger.published([job.trajectory_id for job in due], claim=claim)
    left = 3 - (again.verdict == "run")
    assert sum(take(ledger).verdict == "run" for _ in range(left + 2)) in (left, left - 1)
    Runs(ledger).cancel("run")


def test_leaves_are_open_after_a_long_time_without_workers(ledger):
    """Whatever expires by then: jobs wait for as long as their run is known."""
    send(ledger)
    for key in ledger.client.scan_iter("hq:sched*"):
        if key in (b"hq:sched:jobs:" + LEAF.encode(), b"hq:sched:leaves"):
            assert ledger.client.ttl(key) > 80 * 86400
        else:
            ledger.client.delete(key)
    tick(ledger)
    assert take(ledger).verdict == "run"


def test_a_limit_whose_note_is_lost_holds_nobody_for_ever(ledger):
    Shares(ledger).change("run", "run", {"max_running": 1})
    made = send(ledger)
    begun = take(ledger)
    assert take(ledger, made[1].trajectory_id).verdict == "none"
    ledger.client.delete("hq:sched:blocked", "hq:sched:blocked:run|run")
    ledger.requeue(Claim(begun.trajectory_id, begun.epoch), owner="w1", delay_s=60)
    tick(ledger)
    assert take(ledger).verdict == "run"


def test_a_clock_that_is_set_back_changes_no_order(ledger):
    send(ledger, 6)
    other = [make_job(run_id="b", instance=f"j{n}") for n in range(6)]
    ids = [f"b.{n:020d}.0" for n in range(6)]
    other = [
        job.model_copy(update={"trajectory_id": name, "group_id": name[:-2]})
        for job, name in zip(other, ids, strict=True)
    ]
    ledger.enqueue("b", other, config=None)
    ledger.client.hset("hq:sched", mapping={"at": time.time() + 86400, "ahead": 0})
    runs = [take(ledger).trajectory_id.split(".")[0] for _ in range(8)]
    tick(ledger)
    runs += [take(ledger).trajectory_id.split(".")[0] for _ in range(4)]
    pairs = zip(runs[::2], runs[1::2], strict=True)
    assert [set(pair) for pair in pairs] == [{"run", "b"}] * 6
    assert abs(float(ledger.client.hget("hq:sched", "at")) - time.time() - 86400) < 60


def test_a_dead_workers_slots_are_given_back(ledger):
    send(ledger, 1)
    begun = take(ledger)
    ledger.sweep(interval_s=0.0, gap_s=60.0, grace_s=5.0)
    ledger.client.zadd("hq:leases", {begun.trajectory_id: 1})
    assert ledger.sweep(interval_s=0.0, gap_s=60.0, grace_s=5.0) == [begun.trajectory_id]
    assert running(ledger) == 0
    ledger.due()
    assert take(ledger).trajectory_id == begun.trajectory_id


def test_an_idle_leaf_is_forgotten_after_a_day(ledger):
    [job] = send(ledger, 1)
    take(ledger)
    publish(ledger, make_record(job))
    tick(ledger)
    assert ledger.client.zcard("hq:sched:leaves") == 1
    ledger.client.zadd("hq:sched:leaves", {LEAF: time.time() - 86500})
    tick(ledger)
    assert ledger.client.zcard("hq:sched:leaves") == 0
    assert ledger.client.hkeys("hq:sched:running") == []


def test_a_round_visits_all_leaves_a_part_at_a_time(ledger, monkeypatch):
    monkeypatch.setattr("hermes_queue.ledger.scheduling.scheduler.VISITED_AT_ONCE", 2)
    send(ledger, 1)
    for lane in ("a", "b", "c"):
        ledger.enqueue("run", [make_job(instance=lane, lane=lane)], config=None)
    assert [tick(ledger)[0] for _ in range(3)] == [2, 2, 0]
    found = {use.name: use.waiting for use in Scheduler(ledger).usage()}
    assert found == {"a": 1, "b": 1, "c": 1, "train": 1}


JUNK_IN_BUDGETS = {
    "no JSON": ({"budget:tokens": "100"}, "{"),
    "limits that are no object": ({"budget:tokens": "100"}, '{"limits": 5}'),
    "a limit without end": ({"budget:tokens": "inf"}, '{"limits": {"max_tokens": 1e999}}'),
    "a limit that is no number": ({"budget:tokens": "9"}, '{"limits": {"max_tokens": "nan"}}'),
    "a budget that is none": ({"budget:tokens": "x"}, "{}"),
    "a sum that is none": ({"budget:tokens": "5", "spent:tokens": "x"}, "{}"),
    "no time": ({"budget:wall_s": "5", "created": "x"}, "{}"),
}


@pytest.mark.parametrize(("run", "job"), JUNK_IN_BUDGETS.values(), ids=JUNK_IN_BUDGETS)
def test_a_job_whose_budget_cannot_be_read_holds_up_no_other(ledger, caplog, run, job):
    bad, good = make_job("a"), make_job("b")
    for each in (bad, good):
        accepted = ledger.enqueue(each.run_id, [each], config=None)
        ledger.published([each.trajectory_id], claim=accepted.claim)
    ledger.client.hset("hq:run:a", mapping=run)
    ledger.client.hset(f"hq:traj:{bad.trajectory_id}", "job", job)
    took = [take(ledger) for _ in range(3)]
    assert good.trajectory_id in [each.trajectory_id for each in took if each.verdict == "run"]
