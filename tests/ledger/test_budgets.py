"""Budgets of a run: reserved at begin, settled at the end, paused when spent."""

from __future__ import annotations

import json
import logging
import time

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim, Runs, Spent
from hermes_queue.ledger.budgets import accounts, set_budgets
from hermes_queue.models import Usage


def jobs_of(count, **fields):
    return [make_job("run", f"i{n}", **fields) for n in range(count)]


def account(ledger, name="tokens"):
    return accounts(ledger, "run", now=time.time())[name]


def spend(ledger, job, tokens, *, cost_usd=None, score=1.0):
    assert begin(ledger, job).verdict == "run"
    usage = Usage(prompt_tokens=tokens - 1, completion_tokens=1)
    record = make_record(job, score).model_copy(update={"usage": usage, "cost_usd": cost_usd})
    return publish(ledger, record)


def test_a_run_pauses_when_its_tokens_are_spent_and_goes_on_with_more(ledger):
    set_budgets(ledger, "run", {"tokens": 100})
    first, second, third = jobs_of(3)
    enqueue(ledger, first, second, third)
    spend(ledger, first, 40)
    assert Runs(ledger).paused("run") is None
    spend(ledger, second, 60)
    pause = Runs(ledger).paused("run")
    assert (pause.by, pause.reason) == ("budget", "budget spent: tokens 100 of 100")
    assert begin(ledger, third).verdict == "paused"
    with pytest.raises(ConfigurationError, match="hermes-queue run budget run --tokens"):
        Runs(ledger).resume("run")
    set_budgets(ledger, "run", {"tokens": 200})
    assert Runs(ledger).resume("run") == 1
    assert begin(ledger, third).verdict == "run"


def test_eighty_percent_is_said_once(ledger, caplog):
    set_budgets(ledger, "run", {"tokens": 100})
    jobs = jobs_of(4)
    enqueue(ledger, *jobs)
    records = []
    for job, tokens in zip(jobs, (50, 35, 5, 5), strict=True):
        epoch = begin(ledger, job).epoch
        usage = Usage(prompt_tokens=tokens)
        records.append(make_record(job, epoch=epoch).model_copy(update={"usage": usage}))
    with caplog.at_level(logging.WARNING):
        publish(ledger, records[0])
        assert caplog.text == ""
        publish(ledger, records[1])
        assert "85 % of the budget is spent: tokens 85 of 100" in caplog.text
        publish(ledger, records[2])
        assert caplog.text.count("of the budget") == 1
        set_budgets(ledger, "run", {"tokens": 110})  # a new budget is warned of anew
        publish(ledger, records[3])
        assert caplog.text.count("of the budget") == 2


def test_what_runs_has_the_average_set_aside_and_holds_others_back(ledger):
    set_budgets(ledger, "run", {"tokens": 100})
    jobs = jobs_of(4)
    enqueue(ledger, *jobs)
    spend(ledger, jobs[0], 40)
    assert begin(ledger, jobs[1]).verdict == "run"
    assert account(ledger).reserved == 40
    assert begin(ledger, jobs[2]).verdict == "held"
    usage = Usage(prompt_tokens=5, completion_tokens=5)
    publish(ledger, make_record(jobs[1]).model_copy(update={"usage": usage}))
    assert (account(ledger).spent, account(ledger).reserved) == (50, 0)
    assert begin(ledger, jobs[2]).verdict == "run"


def test_limits_of_a_job_are_set_aside_so_that_no_budget_is_exceeded(ledger):
    set_budgets(ledger, "run", {"cost_usd": 1.0})
    jobs = jobs_of(3, limits={"max_cost_usd": 0.5})
    enqueue(ledger, *jobs)
    assert [begin(ledger, job).verdict for job in jobs] == ["run", "run", "held"]


def test_a_run_pauses_when_the_rest_does_not_cover_another_trajectory(ledger):
    set_budgets(ledger, "run", {"tokens": 100})
    jobs = jobs_of(2)
    enqueue(ledger, *jobs)
    spend(ledger, jobs[0], 70)
    assert begin(ledger, jobs[1]).verdict == "paused"
    assert "the next trajectory may need 70" in Runs(ledger).paused("run").reason
    assert Runs(ledger).get("run").parked == 1


def test_what_a_retried_attempt_spent_counts(ledger):
    (job,) = jobs_of(1)
    enqueue(ledger, job)
    claim = Claim(job.trajectory_id, begin(ledger, job).epoch)
    ledger.requeue(claim, owner="w1", spent=Spent(tokens=7, cost_usd=0.25))
    assert account(ledger).spent == 7
    assert account(ledger, "cost_usd").spent == 0.25


def test_what_a_dead_worker_spent_counts_as_what_was_set_aside(ledger):
    set_budgets(ledger, "run", {"cost_usd": 3.0})
    (job,) = jobs_of(1, limits={"max_cost_usd": 0.5})
    enqueue(ledger, job)
    begin(ledger, job)
    sweep = swept(ledger)
    age_lease(ledger, job)
    assert sweep() == [job.trajectory_id]
    cost = account(ledger, "cost_usd")
    assert (cost.spent, cost.reserved) == (0.5, 0)


def test_a_cost_nobody_knows_pauses_a_run_that_has_a_cost_budget(ledger):
    set_budgets(ledger, "run", {"cost_usd": 3.0})
    (job,) = jobs_of(1)
    enqueue(ledger, job)
    spend(ledger, job, 10, cost_usd=None)
    assert "cost of 1 trajectories is unknown" in Runs(ledger).paused("run").reason


def test_a_wall_clock_budget_counts_from_the_first_enqueue(ledger):
    set_budgets(ledger, "run", {"wall_s": 3600})
    (job,) = jobs_of(1)
    enqueue(ledger, job)
    ledger.client.hset("hq:run:run", "created", time.time() - 4000)
    assert begin(ledger, job).verdict == "paused"
    assert Runs(ledger).paused("run").reason.startswith("budget spent: wall_s")


def test_without_budgets_spending_is_counted_all_the_same(ledger):
    (job,) = jobs_of(1)
    enqueue(ledger, job)
    spend(ledger, job, 10, cost_usd=0.5)
    assert account(ledger).spent == 10
    assert account(ledger).limit is None


def test_cancelled_runs_free_what_was_set_aside(ledger):
    set_budgets(ledger, "run", {"cost_usd": 3.0})
    (job,) = jobs_of(1, limits={"max_cost_usd": 0.5})
    enqueue(ledger, job)
    begin(ledger, job)
    Runs(ledger).cancel("run")
    assert account(ledger, "cost_usd").reserved == 0


def test_a_failed_job_is_kept_for_a_retry_and_a_replaced_one_is_not(ledger):
    lone = make_job("run", "lone")
    kept = make_job("run", "kept", size=2, group_policy={"max_refills": 1})
    enqueue(ledger, lone, kept)
    for job in (lone, kept):
        publish(ledger, make_record(job, None, epoch=begin(ledger, job).epoch))
    stored = ledger.client.hgetall("hq:failed:run")
    assert list(stored) == [lone.trajectory_id.encode()]
    assert json.loads(stored[lone.trajectory_id.encode()])[0] == "sandbox"
    assert ledger.client.ttl("hq:failed:run") > 0


def test_the_warning_of_a_wall_clock_budget_is_said_though_nothing_has_ended(ledger, caplog):
    set_budgets(ledger, "run", {"wall_s": 1000})
    first, second = jobs_of(2)
    enqueue(ledger, first, second)
    ledger.client.hset("hq:run:run", "created", time.time() - 850)
    with caplog.at_level(logging.WARNING):
        assert begin(ledger, first).verdict == "run"
        assert "85 % of the budget is spent: wall_s" in caplog.text
        assert begin(ledger, second).verdict == "run"
        assert caplog.text.count("of the budget") == 1


def test_why_a_run_pauses_is_said_by_the_worker_whose_job_does_not_begin(ledger, caplog):
    set_budgets(ledger, "run", {"tokens": 100})
    first, second = jobs_of(2)
    enqueue(ledger, first, second)
    spend(ledger, first, 70)
    with caplog.at_level(logging.WARNING):
        assert begin(ledger, second).verdict == "paused"
    assert "budget nearly spent: tokens 70 of 100" in caplog.text


def test_what_a_dead_worker_or_a_revoked_sample_spent_swallows_no_warning(ledger, caplog):
    set_budgets(ledger, "run", {"tokens": 100})
    dead, other = jobs_of(2, limits={"max_tokens": 45})
    enqueue(ledger, dead, other)
    begin(ledger, dead)
    spend(ledger, other, 40)
    sweep = swept(ledger)
    age_lease(ledger, dead)
    with caplog.at_level(logging.WARNING):
        assert sweep() == [dead.trajectory_id]
        assert begin(ledger, dead).verdict == "paused"
    assert "85 % of the budget is spent: tokens 85 of 100" in caplog.text


def test_a_budget_is_not_short_of_what_arithmetic_rounds(ledger):
    set_budgets(ledger, "run", {"cost_usd": 0.3})
    jobs = jobs_of(3, limits={"max_cost_usd": 0.1})
    enqueue(ledger, *jobs)
    assert [begin(ledger, job).verdict for job in jobs] == ["run"] * 3
