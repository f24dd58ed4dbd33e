"""When nobody reads, finished work waits on disk, whatever happens to the worker."""

from __future__ import annotations

import asyncio

from spool_files import spooled
from worker_process import wait_until

import hermes_queue


def test_a_finished_record_outlives_its_worker_while_the_stream_is_full(
    factory, ledger, start_worker, tmp_path
):
    limits = {
        "HERMES_QUEUE_RESULTS_SOFT_MAX_GROUPS": "1",
        "HERMES_QUEUE_RESULTS_HARD_MAX_GROUPS": "1",
        "HERMES_QUEUE_RESULTS_RETENTION_S": "0",
        "HERMES_QUEUE_RESULTS_TRIM_S": "0.2",
        # No lease ends here: on a busy machine the second worker comes later than that, and the
        # job would be run again. What is shown is that its record need not be made again.
        "HERMES_QUEUE_LEASE_DURATION_S": "600",
    }
    worker = start_worker(concurrency=2, **limits)
    jobs = factory.enqueue(2, seconds=0)
    spool = tmp_path / "workers" / "spool"
    wait_until("one is published", lambda: ledger.run_status("run").finished == 1)
    states = {
        job.trajectory_id: ledger.client.hget(f"hq:traj:{job.trajectory_id}", "state")
        for job in jobs
    }
    [waits] = [name for name, state in states.items() if state != b"final"]
    # Its own: that of the other one may be there still, published and not deleted yet.
    wait_until("the other waits on disk", lambda: waits in spooled(spool))
    worker.kill9()
    start_worker(concurrency=2, **limits)

    async def read() -> list[str]:
        found = []
        async for group in hermes_queue.consume("trainer", url=ledger.url):
            found += [(m.trajectory_id, m.epoch) for m in group.members]
            await group.ack()
            if len(found) == 2:
                return found

    found = asyncio.run(asyncio.wait_for(read(), 90))
    assert sorted(found) == sorted((job.trajectory_id, 1) for job in jobs)
    wait_until("the disk is free again", lambda: not spooled(spool))
