"""Workers that share their slots between teams as an operator has set it."""

from __future__ import annotations

from collections import Counter

import pytest
from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger.answers import RunPart
from hermes_queue.ledger.scheduling import Shares

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(300)]

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
SLOW = {"kind": "slow", "params": {"seconds": 0.3, "turns": 1}}


def send(ledger, run_id, count, lane="train", **part):
    jobs = [make_job(run_id, f"i{n}", item=ROW, agent=SLOW, lane=lane) for n in range(count)]
    enqueue(jobs, ledger=ledger, part=RunPart(**part))


def begun(records):
    """Run ids in the order in which trajectories began."""
    return [each.run_id for each in sorted(records, key=lambda each: each.provenance.begun_at)]


def start_four(start_worker, **settings):
    return [start_worker(concurrency=4, **settings) for _ in range(4)]


def test_four_workers_share_their_slots_by_weight(factory, start_worker, ledger):
    Shares(ledger).change("team", "big", {"weight": 3})
    send(ledger, "a", 120, team="big")
    send(ledger, "b", 120, team="small")
    start_four(start_worker)
    factory.wait_done("a")
    records = factory.wait_done("b")
    assert len({each.provenance.worker for each in records}) == 4
    first = Counter(begun(records)[:120])
    assert 80 <= first["a"] <= 100
    assert ledger.client.zcard("hq:waiting") == 0


def test_four_workers_keep_a_cap_and_an_eval_does_not_wait_for_the_backlog(
    factory, start_worker, ledger
):
    send(ledger, "capped", 12, max_running=2)
    send(ledger, "train", 120)
    start_four(start_worker, HERMES_QUEUE_WORKER_LANES="train,eval")
    wait_until("it is under way", lambda: ledger.run_status("train").finished > 4)
    send(ledger, "eval", 12, lane="eval")
    most = 0

    def all_done():
        nonlocal most
        most = max(most, ledger.run_status("capped").running)
        return all(ledger.run_status(name).done for name in ("capped", "train", "eval"))

    wait_until("all are done", all_done)
    assert most <= 2
    order = begun(factory.wait_done("train"))
    assert max(place for place, name in enumerate(order) if name == "eval") < len(order) - 30
