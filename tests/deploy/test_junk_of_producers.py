"""A producer, with its own rights alone, goes on after junk in keys that all use."""

from __future__ import annotations

from contextlib import closing

import pytest
from records import make_job

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger


@pytest.mark.parametrize("key", ["delayed", "waiting", "runs", "lanes", "v1.train"])
def test_a_producer_goes_on_after_junk_in_the_keys_of_all(guarded, key):
    with closing(Ledger.connect(guarded.url("producer"))) as ledger:
        ledger.client.set(f"hq:{key}", "x")
        job = make_job(key, item={"question": "q", "answer": "a"})
        enqueue([job], ledger=ledger, checks_eviction=False)
    name = job.trajectory_id
    with guarded.client("worker") as client:
        state = client.hget(f"hq:traj:{name}", "state")
        places = [client.zscore("hq:delayed", name), client.zscore("hq:waiting", name)]
    assert (state, places.count(None)) == ("queued", 1)
