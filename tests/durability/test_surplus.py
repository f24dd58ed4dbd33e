"""Samples that their group needs no more are stopped, and what they had to show is kept."""

from __future__ import annotations

import pytest
from records import make_job
from worker_process import wait_until

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.models import GroupPolicy

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


@pytest.mark.fleet
def test_the_slow_surplus_of_a_group_is_stopped_and_its_transcript_kept(
    factory, ledger, start_worker
):
    jobs = [
        make_job(
            sample=sample,
            item=ROW,
            agent={"kind": "slow", "params": {"seconds": seconds, "turns": 1}},
            group_policy=GroupPolicy(extra_samples=1),
        )
        for sample, seconds in enumerate((600, 4))
    ]
    enqueue(jobs, ledger=ledger)
    worker = start_worker(concurrency=2)
    [record] = factory.wait_done()
    assert record.sample_index == 1
    key = f"hq:body:{jobs[0].trajectory_id}"
    kept = codec.decode_record(wait_until("the surplus", lambda: ledger.client.get(key)))
    assert (kept.score, kept.stop_reason) == (None, "cancelled")
    assert "user" in [message.role for message in kept.messages]
    assert worker.alive
