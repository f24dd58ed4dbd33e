"""A worker sets its next jobs up while its agents work, and leaves them to others when it ends."""

from __future__ import annotations

import signal

import pytest
from worker_process import wait_until

AHEAD = {"HERMES_QUEUE_STAGES_PREFETCH": "1", "HERMES_QUEUE_STAGES_FLEET_AGENT": "4"}


def stages(ledger) -> dict[str, int]:
    """Of what its only worker runs, as of its last beat."""
    return next(iter(ledger.workers()), {}).get("stages", {})


@pytest.mark.fleet
def test_the_next_job_waits_set_up_for_the_place_of_an_agent(factory, start_worker, ledger) -> None:
    worker = start_worker(concurrency=1, **AHEAD)
    factory.enqueue(3, seconds=4.0)
    wait_until("one that waits", lambda: stages(ledger) == {"agent": 1, "agent_wait": 1})
    leased = ledger.client.zcard("hq:limit:stage://fleet|agent:leases")
    assert leased == 1, "it holds no place of the fleet"
    records = factory.wait_done()
    assert worker.alive
    assert {record.attempt for record in records} == {1}
    assert max(record.stage_seconds["agent_wait"] for record in records) > 1.0


@pytest.mark.fleet
def test_a_worker_that_ends_leaves_what_it_has_set_up_to_others(
    factory, start_worker, ledger
) -> None:
    first = start_worker(concurrency=1, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="60", **AHEAD)
    jobs = factory.enqueue(2, seconds=6.0)
    wait_until("one that waits", lambda: stages(ledger) == {"agent": 1, "agent_wait": 1})
    first.process.send_signal(signal.SIGTERM)
    states = [f"hq:traj:{job.trajectory_id}" for job in jobs]
    wait_until(
        "a hand-back", lambda: b"queued" in [ledger.client.hget(key, "state") for key in states]
    )
    assert first.alive, "its agent goes on"
    start_worker(concurrency=1, **AHEAD)
    records = factory.wait_done()
    assert [(record.attempt, record.attempts) for record in records] == [(1, ())] * 2
    assert first.terminate() == 0
