"""A worker whose event loop stands still ends, and what it had runs elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import EXIT_BLOCKED

SUPPORT = str(Path(__file__).parents[1] / "support")
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


def test_a_blocked_worker_ends_its_jobs_run_elsewhere_and_only_the_culprit_counts_a_death(
    factory, ledger, start_worker, tmp_path
):
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])),
        "STRANGE_BLOCKED": str(tmp_path / "blocked"),
    }
    first = start_worker(concurrency=3, **settings)
    jobs = [
        make_job(instance=name, item=ROW, env=f"strange_env:{env}")
        for name, env in {
            "one": "AFTER_THE_BLOCK",
            "two": "AFTER_THE_BLOCK",
            "culprit": "BLOCKS_ONCE",
        }.items()
    ]
    enqueue(jobs[:2], ledger=ledger)
    factory.wait_running(2)
    enqueue(jobs[2:], ledger=ledger)
    wait_until("the loop stands still", (tmp_path / "blocked").exists)
    start_worker(concurrency=3, **settings)

    records = {record.instance_id: record for record in factory.wait_done()}
    assert first.process.wait(60) == EXIT_BLOCKED
    outcomes = {name: (record.score, record.epoch) for name, record in records.items()}
    assert outcomes == {"one": (1.0, 2), "two": (1.0, 2), "culprit": (1.0, 2)}
    deaths = [ledger.client.hget(f"hq:traj:{job.trajectory_id}", "deaths") for job in jobs]
    assert deaths == [None, None, b"1"]
    log = first.log()
    assert "this worker ends with exit code 5" in log
    assert "time.sleep(3600)" in log.split("this worker ends")[1]
    assert "Thread 0x" in log  # those of all threads
