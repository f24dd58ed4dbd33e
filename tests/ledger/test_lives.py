"""A run that was purged begins anew; what is left of its former life counts no more."""

from __future__ import annotations

import asyncio
import json

from ledger_steps import LEASE, begin, enqueue, publish
from records import make_job, make_record

import hermes_queue
from hermes_queue.bodies import codec
from hermes_queue.ledger import Claim, Ledger, Runs
from hermes_queue.ledger.fleet.objects import NotedObject, note_object, unneeded_objects
from hermes_queue.models import GroupPolicy


def test_a_purged_run_that_is_enqueued_again_runs_and_publishes_again(ledger):
    jobs = [make_job(sample=n, size=2) for n in range(2)]
    for life in range(3):
        assert len(enqueue(ledger, *jobs)) == 2
        for job in jobs:
            assert ledger.client.ttl(f"hq:traj:{job.trajectory_id}") == -1
            epoch = begin(ledger, job).epoch
            publish(ledger, make_record(job, float(life), epoch=epoch))
        status = ledger.run_status("run")
        assert (status.finished, status.groups, status.surplus, status.total) == (2, 1, 0, 2)
        Runs(ledger).purge("run")
        assert not list(ledger.client.scan_iter("hq:traj:*"))
        assert not list(ledger.client.scan_iter("hq:group:*"))
    entries = [fields for _, fields in ledger.client.xrange("hq:results")]
    assert [float(fields[b"mean"]) for fields in entries] == [0.0, 1.0, 2.0]


def test_results_of_a_former_life_are_read_as_they_were(server):
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        job = make_job()
        for score in (0.25, 0.75):
            enqueue(ledger, job)
            publish(ledger, make_record(job, score, epoch=begin(ledger, job).epoch))
            Runs(ledger).purge("run")

    async def read():
        groups = hermes_queue.consume("t", url=server.url, idle_timeout_s=0.1)
        return [(g.mean, [(m.trajectory_id, m.score) for m in g.members]) async for g in groups]

    name = job.trajectory_id
    assert asyncio.run(read()) == [(0.25, [(name, 0.25)]), (0.75, [(name, 0.75)])]


def test_neither_a_record_nor_a_claim_of_a_former_life_counts_in_the_next(ledger):
    job = make_job()
    enqueue(ledger, job)
    old = Claim(job.trajectory_id, begin(ledger, job).epoch)
    Runs(ledger).cancel("run")
    Runs(ledger).purge("run")
    spooled = make_record(job, 1.0, epoch=old.epoch)
    assert publish(ledger, spooled) == "cancelled"  # nobody is to keep it for later
    enqueue(ledger, job)
    assert publish(ledger, spooled) == "stale"
    new = Claim(job.trajectory_id, begin(ledger, job).epoch)
    assert ledger.renew([old], **LEASE) == {old: "lost"}
    assert not ledger.requeue(old, owner="w1")
    assert publish(ledger, spooled) == "stale"
    assert publish(ledger, make_record(job, 0.5, epoch=new.epoch)) == "group"


def test_samples_added_in_a_later_life_belong_to_it(ledger):
    job = make_job(group_policy=GroupPolicy(max_refills=1))
    for _ in range(2):
        enqueue(ledger, job)
        epoch = begin(ledger, job).epoch
        publish(ledger, make_record(job, None, epoch=epoch))
        refill = codec.decode_job(codec.encode_job(job), f"{job.group_id}.1")
        assert begin(ledger, refill).epoch == epoch
        assert publish(ledger, make_record(refill, 1.0, epoch=epoch)) == "group"
        Runs(ledger).purge("run")


def test_what_an_older_version_left_of_a_purged_run_is_begun_anew(ledger):
    job = make_job(size=1)
    enqueue(ledger, job)
    old = begin(ledger, job).epoch
    publish(ledger, make_record(job, epoch=old))
    ledger.client.delete("hq:run:run", "hq:run:run:claimed")
    other = make_job(group_policy=GroupPolicy(max_refills=1))
    assert len(enqueue(ledger, other)) == 1
    new = begin(ledger, other)
    assert (new.verdict, new.epoch > old) == ("run", True)
    assert ledger.client.ttl(f"hq:traj:{job.trajectory_id}") == -1


def test_an_object_of_a_later_life_is_listed_for_its_own_body(ledger):
    job, url = make_job(), "file:///store/run/1"
    for _ in range(2):
        enqueue(ledger, job)
        epoch = begin(ledger, job).epoch
        Runs(ledger).cancel("run")
        Runs(ledger).purge("run")
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    note_object(ledger, NotedObject(job.trajectory_id, url), grace_s=0.0)
    from hermes_queue.bodies.store import ClaimCheck

    body = ClaimCheck(url, "0" * 64, 3).encode()
    record = make_record(job, epoch=epoch)
    assert ledger.publish(record, body, owner="w1", finished_ttl_s=60) == "group"
    [(_, entry)] = ledger.client.xrange("hq:results")
    assert json.loads(entry[b"members"]) == [f"{job.trajectory_id}~2"]
    assert unneeded_objects(ledger, "file:///store", grace_s=0.0) == []
    ledger.client.delete(f"hq:body:{job.trajectory_id}~2")
    assert len(unneeded_objects(ledger, "file:///store", grace_s=0.0)) == 1
