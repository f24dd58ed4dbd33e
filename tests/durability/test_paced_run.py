"""A trainer ten times slower than its fleet: its slots do other work, and nothing gets too old."""

from __future__ import annotations

import time

import pytest
from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger.fleet.pacing import pace_of
from hermes_queue.ledger.policy import set_version
from hermes_queue.trainers.feed import Feed

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
STEPS, GROUPS, MAX_LAG = 8, 2, 1
SAMPLING_S, STEP_S = 0.05, 0.5


def jobs_of(run, groups, size, seconds):
    agent = {"kind": "slow", "params": {"seconds": seconds, "turns": 1}}
    return [
        make_job(run, f"i{n:02}", index, size, item=ROW, agent=agent)
        for n in range(groups)
        for index in range(size)
    ]


@pytest.mark.fleet
def test_no_sample_is_older_than_its_bound_and_another_run_gets_the_slots(
    start_worker, redis_server, ledger, tmp_path
):
    set_version(ledger, "run", 0)
    options = {"run": "run", "directory": tmp_path, "group_size": 2, "min_std": None}
    bound = {"max_lag": MAX_LAG, "on_stale": "train", "pace": GROUPS}  # too old ones are counted
    with Feed("trainer", url=redis_server.url, **options, **bound) as feed:
        assert feed.take(1, timeout_s=0) == []  # begins to pace
        enqueue(jobs_of("run", 10 * GROUPS, 2, SAMPLING_S), ledger=ledger)
        worker = start_worker(concurrency=4)
        lags, ahead = [], []
        for step in range(1, STEPS + 1):
            groups = feed.take(GROUPS)
            begun = [member.policy_begun for group in groups for member in group.members]
            lags += [feed.version - version for version in begun]
            if step == 2:
                enqueue(jobs_of("other", 12, 1, SAMPLING_S), ledger=ledger)
                wait_until("one of them runs", lambda: ledger.run_status("other").running)
                worker.kill9()
                start_worker(concurrency=4)
            if step == 3:
                wait_until("the other run is done", lambda: ledger.run_status("other").done)
                wait_until("the run waits", lambda: pace_of(ledger, "run").held)
            time.sleep(STEP_S)
            ahead.append(pace_of(ledger, "run").ahead)
            feed.trained(step, groups)
            feed.published(step)
            feed.saved(step)
        assert feed.counts.stale == 0
        assert max(lags) <= MAX_LAG, lags
        assert max(ahead) == (MAX_LAG + 1) * GROUPS
        assert ledger.run_status("run").finished <= 2 * (STEPS + MAX_LAG + 1) * GROUPS
        assert ledger.run_status("other").finished == 12
