"""When what all jobs need is down, the lane pauses instead of burning its queue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Breakers

SUPPORT = str(Path(__file__).parents[1] / "support")
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


@pytest.mark.fleet
def test_a_lane_pauses_in_an_outage_and_finishes_everything_after_it(
    factory, ledger, start_worker, tmp_path
):
    outage = tmp_path / "outage"
    outage.touch()
    worker = start_worker(
        concurrency=2,
        PYTHONPATH=os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])),
        STRANGE_OUTAGE=str(outage),
        HERMES_QUEUE_BREAKER_MIN_FAILURES="4",
        HERMES_QUEUE_BREAKER_OPEN_S="1",
        HERMES_QUEUE_BREAKER_OPEN_MAX_S="1",
        HERMES_QUEUE_RETRY_MAX_ATTEMPTS="1",
    )
    jobs = [make_job(instance=f"i{n}", item=ROW, env="strange_env:OUTAGE") for n in range(20)]
    enqueue(jobs, ledger=ledger)
    breakers = Breakers(ledger)
    wait_until("the breaker opens", lambda: breakers.state("train").state != "closed")
    assert "the package index is down" in breakers.state("train").message
    outage.unlink()
    records = factory.wait_done()
    assert len(records) == 20
    unscored = sum(record.score is None for record in records)
    assert unscored < 15, worker.log()
    worker.wait_for_log("lane train is paused")
    worker.wait_for_log("lane train is resumed")
