"""A Redis that comes back without the last it knew: the power went, or the disk was full."""

from __future__ import annotations

import os

import pytest


@pytest.mark.fleet
@pytest.mark.parametrize("lost_bytes", [100, 2000])
def test_a_truncated_aof_costs_repetitions_but_no_job(
    factory, redis_server, start_worker, lost_bytes
):
    worker = start_worker(concurrency=2)
    jobs = factory.enqueue(4, seconds=2)
    factory.wait_running(2)
    redis_server.kill9()
    [aof] = redis_server.directory.glob("appendonlydir/*.incr.aof")
    os.truncate(aof, aof.stat().st_size - lost_bytes)
    redis_server.start()
    records = factory.wait_done()
    assert sorted(r.trajectory_id for r in records) == sorted(j.trajectory_id for j in jobs)
    assert all(record.score is not None for record in records)
    assert worker.alive, worker.log()
