"""Workers with Modal sandboxes: killed, and out of quota."""

from __future__ import annotations

import pytest
from worker_process import wait_until

from hermes_queue.ledger.sandboxes import Sandboxes
from hermes_queue.testing import localmodal, localmodal_server

__all__ = ["localmodal", "localmodal_server"]

QUICK = {
    "HERMES_QUEUE_SANDBOX_BACKEND": "modal",
    "HERMES_QUEUE_SANDBOX_REAP_S": "1",
    "HERMES_QUEUE_SANDBOX_REAP_GRACE_S": "1",
    "HERMES_QUEUE_MODAL_CREATES_PER_S": "100",
}


@pytest.mark.timeout(120)
def test_a_killed_workers_sandboxes_end_and_its_jobs_are_done_by_another(
    localmodal, factory, ledger, start_worker
):
    doomed = start_worker(concurrency=2, **QUICK)
    factory.enqueue(2, seconds=6)
    factory.wait_running(2)
    old = wait_until("slots", lambda: {r.sandbox_id for r in Sandboxes(ledger).all() if r.slots})
    assert old == set(localmodal.running())
    doomed.kill9()
    heir = start_worker(concurrency=2, **QUICK)
    records = factory.wait_done()
    assert all(record.score is not None for record in records)
    wait_until("sandboxes ended", lambda: not old & set(localmodal.running()))
    assert heir.terminate() == 0, heir.log()
    assert localmodal.running() == []
    assert Sandboxes(ledger).all() == []


@pytest.mark.timeout(120)
def test_a_job_that_modal_has_no_room_for_is_handed_back_and_uses_no_attempt(
    localmodal, factory, start_worker
):
    for call in ("SandboxCreate", "SandboxCreateV2"):  # by version of the SDK
        localmodal.faults.inject(call, status="RESOURCE_EXHAUSTED", count=2)
    worker = start_worker(concurrency=1, HERMES_QUEUE_MODAL_PATIENCE_S="0", **QUICK)
    factory.enqueue(1, seconds=0)
    [record] = factory.wait_done()
    assert (record.attempt, record.attempts) == (1, ())
    assert record.score is not None
    assert worker.log().count("is handed back") == 2
