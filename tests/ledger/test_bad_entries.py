"""What somebody writes to our keys by hand stops nothing for others."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from ledger_steps import LEASE, SWEEP, age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.cli.overview import overview
from hermes_queue.ledger import Claim, Ledger, QueueKeys

QUEUES = QueueKeys(retry=["v1.train.retry"], first=["v1.train"])
JOB = {
    "state": "queued",
    "attempt": "1",
    "epoch": "0",
    "lane": "train",
    "priority": "5",
    "job": "{}",
}
BAD = {
    "no dots": (b"x", JOB),
    "no UTF-8": (b"r.d\xff.0", JOB),
    "an attempt that is none": (b"r.d.0", {**JOB, "attempt": "x"}),
    "an epoch that is none": (b"r.d.0", {**JOB, "epoch": "1e9"}),
    "a lane in no UTF-8": (b"r.d.0", {**JOB, "lane": b"\xff"}),
    "a priority that is none": (b"r.d.0", {**JOB, "priority": "500"}),
    "no hash": (b"r.d.0", None),
}


@pytest.mark.parametrize(("name", "fields"), BAD.values(), ids=BAD)
def test_an_entry_that_is_no_job_is_taken_out_and_others_move_on(ledger, caplog, name, fields):
    client, job = ledger.client, make_job()
    enqueue(ledger, job)
    if fields is None:
        client.set(b"hq:traj:" + name, "x")
    else:
        client.hset(b"hq:traj:" + name, mapping=fields)
    client.zadd("hq:delayed", {name: 1, job.trajectory_id: 2})
    assert [each.trajectory_id for each in ledger.due()[1]] == [job.trajectory_id]
    assert client.zscore("hq:delayed", name) is None
    assert fields is None or "invalid entries" in caplog.text

    sweep = swept(ledger)
    begun = begin(ledger, job)
    assert begun.verdict == "run"
    if fields is not None:
        client.hset(b"hq:traj:" + name, "state", "running")
    client.zadd("hq:leases", {name: 1})
    age_lease(ledger, job)
    assert sweep() == [job.trajectory_id]
    assert client.zcard("hq:leases") == 0

    client.zadd("hq:waiting", {name: 1, job.trajectory_id: 2})
    assert job.trajectory_id in ledger.reconcile("train", age_s=0.0)


def test_a_job_whose_key_is_no_hash_begins_anew(ledger):
    jobs = [make_job(sample=sample, size=3) for sample in range(3)]
    ledger.client.set(f"hq:traj:{jobs[2].trajectory_id}", "x")
    assert len(enqueue(ledger, *jobs)) == 3
    assert ledger.run_status("run").queued == 3
    assert begin(ledger, jobs[2]).verdict == "run"


def test_a_job_whose_sums_cannot_be_kept_keeps_its_place(ledger):
    job = make_job()
    enqueue(ledger, job)
    swept(ledger)
    begin(ledger, job)
    ledger.client.hset("hq:run:run", "running", "x")
    age_lease(ledger, job)
    assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    ledger.client.hset("hq:run:run", "running", "0")
    assert begin(ledger, job).verdict == "run"


def test_leases_are_renewed_beside_a_run_that_is_no_hash(ledger):
    bad, good = make_job("bad"), make_job("good")
    enqueue(ledger, bad)
    enqueue(ledger, good)
    claims = [Claim(job.trajectory_id, begin(ledger, job).epoch) for job in (bad, good)]
    ledger.client.delete("hq:run:bad")
    ledger.client.set("hq:run:bad", "x")
    assert ledger.renew(claims, **LEASE) == {}
    assert ledger.client.zscore("hq:leases", good.trajectory_id) > time.time() + 5


def test_a_run_that_cannot_be_read_hides_no_other(server):
    with closing(Ledger.connect(url=server.url)) as ledger:  # fakeredis has no INFO
        enqueue(ledger, make_job("good"))
        ledger.client.zadd("hq:runs", {b"\xff": 1, b"bad": 2})
        bad = {"state": "active", "created": "x", "total": "1"}
        ledger.client.hset("hq:run:bad", mapping=bad)
        assert [each.info.run_id for each in overview(ledger).runs] == ["good"]


@pytest.mark.parametrize(
    "field", ["budget:tokens", "spent:tokens", "settled", "finished", "running", "unpriced"]
)
def test_a_run_with_sums_that_are_none_gets_its_results(ledger, field):
    job = make_job()
    enqueue(ledger, job)
    ledger.client.hset("hq:run:run", "budget:tokens", 1000)
    begin(ledger, job)
    ledger.client.hset("hq:run:run", field, "x")
    assert publish(ledger, make_record(job)) == "group"
    assert ledger.client.xlen("hq:results") == 1
    assert not ledger.client.zcard("hq:leases")
