"""A job that kills its workers ends, and none of those who shared a worker with it do."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from records import make_job

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger.dead import DeadLetters, revived

SUPPORT = str(Path(__file__).parents[1] / "support")
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


@pytest.mark.fleet
@pytest.mark.timeout(400)
def test_a_poison_job_is_quarantined_and_buried_and_its_neighbours_are_measured(
    factory, ledger, start_worker
):
    poison = make_job(instance="poison", item=ROW, env="strange_env:KILLER")
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])),
        "HERMES_QUEUE_RETRY_QUARANTINE_DEATHS": "2",
        "HERMES_QUEUE_RETRY_MAX_DEATHS": "2",
        # The search for dead neighbours finds a child dead before its parent looks after it.
        "HERMES_QUEUE_LEASE_RENEW_S": "0.5",
        "HERMES_QUEUE_LEASE_SWEEP_S": "1",
        "HERMES_QUEUE_LEASE_MOVER_S": "2",
    }
    over = threading.Event()
    # Its supervisor starts it again: who waited for it to be ready might find it dead already.
    worker = start_worker(concurrency=4, **settings)
    worker.terminate()
    enqueue([poison], ledger=ledger)
    neighbours = factory.enqueue(12, seconds=2)

    def restart() -> None:
        """What systemd or an orchestrator does."""
        while not over.wait(0.2):
            if not worker.alive:
                worker.launch()

    supervisor = threading.Thread(target=restart)
    supervisor.start()
    try:
        records = {record.trajectory_id: record for record in factory.wait_done(timeout_s=150)}
    finally:
        over.set()
        supervisor.join()
    assert all(records[job.trajectory_id].score is not None for job in neighbours)
    failed = records[poison.trajectory_id]
    assert failed.score is None
    assert "2 workers died while they ran it alone" in failed.failure.message
    [letter] = DeadLetters(ledger).find()
    assert (letter.fields["cause"], letter.fields["env"]) == ("poison", "strange_env:KILLER")
    alone = [line.endswith(" quarantine") for line in letter.fields["died"].splitlines()]
    assert alone == [False, False, True, True]
    assert "INFO" in letter.fields["log"]
    assert revived(letter).requeued_from == poison.trajectory_id
