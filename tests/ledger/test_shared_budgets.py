"""Budgets that runs share: each attempt counts once, and jobs without room wait for some."""

from __future__ import annotations

import logging

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim, Ledger, Runs, Spent
from hermes_queue.ledger.accounts.shared import SharedBudget, SharedBudgets
from hermes_queue.ledger.cancelling import cancel
from hermes_queue.models import Usage

ENV = "env:gsm8k"


def the_budget(ledger: Ledger, name: str = ENV) -> SharedBudget:
    return next(each for each in SharedBudgets(ledger).all() if each.name == name)


def spend(ledger: Ledger, job, tokens: int, cost_usd: float = 0.0) -> str:
    assert begin(ledger, job).verdict == "run"
    update = {"usage": Usage(prompt_tokens=tokens), "cost_usd": cost_usd}
    return publish(ledger, make_record(job).model_copy(update=update))


def released(ledger: Ledger) -> list[str]:
    """Jobs that are due: those that wait for room are looked at with the call before."""
    ledger.due()
    return [job.trajectory_id for job in ledger.due()[1]]


def jobs_of(count: int, run_id: str = "run", **fields):
    return [make_job(run_id, f"i{n}", **fields) for n in range(count)]


def test_runs_share_a_budget_and_wait_when_it_is_spent(ledger, caplog):
    SharedBudgets(ledger).set(ENV, {"tokens": 100})
    [one, other], [third] = jobs_of(2, "a"), jobs_of(1, "b")
    enqueue(ledger, one, other)
    enqueue(ledger, third)
    spend(ledger, one, 100)
    with caplog.at_level(logging.WARNING):
        assert begin(ledger, other).verdict == "over_budget"
        assert begin(ledger, third).verdict == "over_budget"
    assert caplog.text.count("the budget of env:gsm8k has no room (tokens: 100 of 100") == 1
    found = the_budget(ledger)
    assert (found.waiting, found.exhausted, found.running) == (2, True, 0)
    assert released(ledger) == []
    SharedBudgets(ledger).set(ENV, {"tokens": 500})
    assert released(ledger) == [other.trajectory_id, third.trajectory_id]
    assert spend(ledger, third, 10) == "group"
    assert the_budget(ledger).spent["tokens"] == 110


def test_a_lifted_budget_lets_its_jobs_go(ledger):
    budgets = SharedBudgets(ledger)
    budgets.set(ENV, {"cost_usd": 1})
    first, second = jobs_of(2)
    enqueue(ledger, first, second)
    spend(ledger, first, 1, cost_usd=2.0)
    assert begin(ledger, second).verdict == "over_budget"
    assert budgets.lift(ENV)
    assert released(ledger) == [second.trajectory_id]
    assert begin(ledger, second).verdict == "run"
    assert not budgets.lift(ENV)
    assert not list(ledger.client.scan_iter("hq:budget*"))


def test_the_next_window_has_room(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 10}, window_s=86400)
    first, second = jobs_of(2)
    enqueue(ledger, first, second)
    spend(ledger, first, 10)
    assert begin(ledger, second).verdict == "over_budget"
    for window in ("1", "99999999"):  # the past, and the future of a clock that was set back
        ledger.client.hset(f"hq:budget:{ENV}", "window", window)
        assert the_budget(ledger).spent == {}
        assert released(ledger) == [second.trajectory_id]
        ledger.client.hset(f"hq:budget:{ENV}", "spent:tokens", 10)
        assert begin(ledger, second).verdict == "over_budget"


def test_running_jobs_have_the_average_set_aside(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 100})
    jobs = jobs_of(4)
    enqueue(ledger, *jobs)
    spend(ledger, jobs[0], 40)
    assert begin(ledger, jobs[1]).verdict == "run"
    assert begin(ledger, jobs[2]).verdict == "over_budget"
    assert the_budget(ledger).reserved["tokens"] == 40
    usage = {"usage": Usage(prompt_tokens=5)}
    publish(ledger, make_record(jobs[1]).model_copy(update=usage))
    assert released(ledger) == [jobs[2].trajectory_id]


def test_a_job_that_may_need_more_than_the_whole_budget_runs_alone(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 100})
    jobs = jobs_of(2, limits={"max_tokens": 500})
    enqueue(ledger, *jobs)
    assert begin(ledger, jobs[0]).verdict == "run"
    assert begin(ledger, jobs[1]).verdict == "over_budget"
    publish(ledger, make_record(jobs[0]))
    assert released(ledger) == [jobs[1].trajectory_id]


def test_those_that_wait_go_first(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 100})
    first, second, third = jobs_of(3)
    enqueue(ledger, first, second, third)
    spend(ledger, first, 100)
    assert begin(ledger, second).verdict == "over_budget"
    SharedBudgets(ledger).set(ENV, {"tokens": 1000})
    assert begin(ledger, third).verdict == "over_budget"
    assert released(ledger) == [second.trajectory_id, third.trajectory_id]
    assert begin(ledger, third).verdict == "run"


@pytest.mark.parametrize("name", ["env:gsm8k", "model:tiny", "team:alpha"])
def test_each_kind_counts_its_own_jobs_alone(ledger, name):
    SharedBudgets(ledger).set(name, {"tokens": 10})
    mine = make_job("mine", agent={"kind": "openai", "model": "tiny"})
    others = make_job("others", env="swe_smith", agent={"kind": "openai", "model": "large"})
    enqueue(ledger, mine)
    enqueue(ledger, others)
    ledger.client.hset("hq:run:mine", "team", "alpha")
    spend(ledger, others, 1000)
    assert the_budget(ledger, name).spent == {}
    spend(ledger, mine, 7)
    assert the_budget(ledger, name).spent["tokens"] == 7


def test_each_way_in_which_an_attempt_ends_counts_once(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 10_000})
    done, retried, dead, cancelled = jobs = jobs_of(4)
    enqueue(ledger, *jobs)
    spend(ledger, done, 100)
    for job in (retried, dead, cancelled):
        begin(ledger, job)
    ledger.requeue(Claim(retried.trajectory_id, 1), owner="w1", spent=Spent(30, 0.0))
    ledger.requeue(Claim(retried.trajectory_id, 1), owner="w1", spent=Spent(30, 0.0))
    assert the_budget(ledger).spent["tokens"] == 130
    sweep = swept(ledger)
    age_lease(ledger, dead)
    sweep()  # nothing is known of what it spent: the average
    assert the_budget(ledger).spent["tokens"] == 230
    Runs(ledger).cancel("run")
    found = the_budget(ledger)
    assert found.running == 0
    assert found.reserved["tokens"] == pytest.approx(0, abs=1e-6)
    assert found.spent["tokens"] == 330


def test_slot_time_counts_what_the_lease_has_lasted(ledger):
    SharedBudgets(ledger).set(ENV, {"slot_s": 3600})
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    key = f"hq:traj:{job.trajectory_id}"
    ledger.client.hset(key, "begun", float(ledger.client.hget(key, "begun")) - 100)
    publish(ledger, make_record(job))
    assert the_budget(ledger).spent["slot_s"] == pytest.approx(100, abs=9)


def test_a_job_that_waits_for_room_can_be_cancelled(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 1})
    first, second = jobs_of(2)
    enqueue(ledger, first, second)
    spend(ledger, first, 5)
    assert begin(ledger, second).verdict == "over_budget"
    cancel(ledger, trajectories=[second.trajectory_id], groups=[], reason="no")
    assert begin(ledger, second).cancel == "no"
    publish(ledger, make_record(second, None))
    SharedBudgets(ledger).lift(ENV)
    assert released(ledger) == []
    assert not ledger.client.exists("hq:paced", f"hq:budget-held:{ENV}")


def test_what_a_producer_may_write_breaks_nothing(ledger):
    SharedBudgets(ledger).set(ENV, {"tokens": 1000})
    junk = ('{"env:gsm8k": 3}', "[]", "nonsense", '{"env:gsm8k": {"tokens": "x"}}', '{"a": {}}')
    for n, shared in enumerate(junk):
        job = make_job(instance=f"i{n}")
        enqueue(ledger, job)
        begin(ledger, job)
        ledger.client.hset(f"hq:traj:{job.trajectory_id}", "shared", shared)
        assert publish(ledger, make_record(job)) == "group"


def test_without_budgets_nothing_is_kept(ledger):
    job = make_job()
    enqueue(ledger, job)
    spend(ledger, job, 5)
    assert not list(ledger.client.scan_iter("hq:budget*"))


@pytest.mark.parametrize("name", ["alpha", "run:r", "team:", "team:a b", "team:" + "x" * 300])
def test_a_name_that_is_none_is_refused_with_the_right_form(ledger, name):
    with pytest.raises(ConfigurationError, match="it is KIND:NAME, with KIND one of env, team"):
        SharedBudgets(ledger).set(name, {"tokens": 1})


def test_jobs_of_two_budgets_are_not_sent_from_one_queue_to_the_other_for_ever(ledger):
    team, limits = "team:alpha", {"max_tokens": 60}
    for name in (ENV, team):
        SharedBudgets(ledger).set(name, {"tokens": 100})
    of_env = make_job("beta", limits=limits)
    of_team = make_job("alpha", env="swe_smith", limits=limits)
    both = jobs_of(8, "run", limits=limits)
    for run_id, jobs in (("beta", [of_env]), ("alpha", [of_team]), ("run", both)):
        enqueue(ledger, *jobs)
        ledger.client.hset(f"hq:run:{run_id}", "team", run_id.replace("run", "alpha"))
    assert [begin(ledger, job).verdict for job in (of_env, of_team)] == ["run", "run"]
    assert {begin(ledger, job).verdict for job in both} == {"over_budget"}
    by_id = {job.trajectory_id: job for job in both}

    def round_of_the_mover() -> int:
        began = 0
        for due in ledger.due()[1]:
            job = by_id[due.trajectory_id]
            if begin(ledger, job).verdict == "run":
                publish(ledger, make_record(job))
                began += 1
        return began

    publish(ledger, make_record(of_env))
    while the_budget(ledger, team).waiting < 4:
        assert not round_of_the_mover()
    publish(ledger, make_record(of_team))
    assert sum(round_of_the_mover() for _ in range(30)) == len(both)


def test_an_enormous_limit_keeps_no_room_after_its_job(ledger):
    SharedBudgets(ledger).set(ENV, {"cost_usd": 100})
    huge, *others = jobs_of(3)
    huge = make_job("run", "huge", limits={"max_cost_usd": 1e300})
    enqueue(ledger, huge)
    enqueue(ledger, *others)
    spend(ledger, huge, 1, cost_usd=1.0)
    assert the_budget(ledger).reserved["cost_usd"] == pytest.approx(0)
    assert [begin(ledger, job).verdict for job in others] == ["run", "run"]


@pytest.mark.parametrize("limit", ["1e999", '"nan"', '"inf"', "-1e999"])
def test_a_limit_that_is_no_number_stops_no_lane(ledger, limit):
    SharedBudgets(ledger).set(ENV, {"tokens": 1000})
    bad, good = jobs_of(2)
    enqueue(ledger, bad, good)
    key = f"hq:traj:{bad.trajectory_id}"
    ledger.client.hset(key, "job", f'{{"env": "gsm8k", "limits": {{"max_tokens": {limit}}}}}')
    assert begin(ledger, bad).verdict == "run"
    publish(ledger, make_record(bad))
    assert begin(ledger, good).verdict == "run"
    found = the_budget(ledger)
    assert (found.running, found.reserved.get("tokens", 0)) == (1, 0)


def test_jobs_of_a_budget_that_was_lifted_do_not_count_in_the_next_one(ledger):
    budgets = SharedBudgets(ledger)
    budgets.set(ENV, {"tokens": 100})
    old, *new = jobs_of(3, limits={"max_tokens": 60})
    enqueue(ledger, old, *new)
    assert begin(ledger, old).verdict == "run"
    budgets.lift(ENV)
    budgets.set(ENV, {"tokens": 100})
    assert begin(ledger, new[0]).verdict == "run"
    publish(ledger, make_record(old))
    assert (the_budget(ledger).running, the_budget(ledger).reserved["tokens"]) == (1, 60)
    assert begin(ledger, new[1]).verdict == "over_budget"
