"""The accounts of slots add up to the time for which slots were leased, whoever is killed."""

from __future__ import annotations

import time

import pytest
from worker_process import wait_until

from hermes_queue.ledger.accounts.goodput import goodput_of_run
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.budgets import accounts


@pytest.mark.fleet
def test_a_killed_workers_time_is_charged_and_all_accounts_add_up(factory, ledger, start_worker):
    doomed = start_worker(concurrency=2)
    factory.enqueue(2, seconds=0.1, run_id="quick")
    factory.wait_done("quick")
    wait_until("reported", lambda: goodput_of_run(ledger, "quick").scored == 2)
    factory.enqueue(2, seconds=6)
    factory.wait_running(2)
    doomed.kill9()
    other = start_worker(concurrency=2)
    factory.wait_done()
    other.terminate()  # reports the rest
    good = goodput_of_run(ledger, "run")
    leased_s = accounts(ledger, "run", now=time.time())["slot_s"].spent
    assert good.attempts == {"measured": 2}
    assert good.seconds["death"] > 0
    assert good.scored == 2
    assert sum(good.seconds.values()) == pytest.approx(leased_s, rel=0.01)
    assert good.seconds.get("unaccounted", 0.0) < good.seconds["tools"]


def test_jobs_wait_for_a_shared_budget_without_a_slot_and_go_on_when_it_is_lifted(
    factory, ledger, start_worker
):
    budgets = SharedBudgets(ledger)
    budgets.set("env:gsm8k", {"slot_s": 0.001})
    start_worker(concurrency=1)
    jobs = factory.enqueue(3, seconds=0.1)
    wait_until("two wait", lambda: budgets.all()[0].waiting == 2)
    wait_until("one has ended", lambda: ledger.run_status("run").finished == 1)
    assert ledger.run_status("run").running == 0
    budgets.lift("env:gsm8k")
    records = factory.wait_done()
    assert sorted(r.trajectory_id for r in records) == sorted(j.trajectory_id for j in jobs)
