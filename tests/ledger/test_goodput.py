"""Where slot-time went: each second has one account, and each report counts once."""

from __future__ import annotations

import time

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.ledger import Claim, Ledger, Runs
from hermes_queue.ledger.accounts.goodput import (
    UNACCOUNTED,
    add_report,
    goodput_of,
    goodput_of_fleet,
    goodput_of_run,
)
from hermes_queue.ledger.accounts.series import course_of, slowest_of
from hermes_queue.ledger.budgets import accounts, set_budgets
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.models import AttemptRecord, Failure


def lasted(ledger: Ledger, job, seconds: float) -> None:
    """Move the start of its lease into the past."""
    key = f"hq:traj:{job.trajectory_id}"
    ledger.client.hset(key, "begun", float(ledger.client.hget(key, "begun")) - seconds)


def slot_s(ledger: Ledger) -> float:
    return accounts(ledger, "run", now=time.time())["slot_s"].spent


def report(ledger: Ledger, number: int, **counts: float) -> None:
    rows = [("run", name.replace("_", "|", 1), by) for name, by in counts.items()]
    add_report(ledger, "w1", number, counts=rows, moments=(), slow=())


def test_every_way_in_which_a_lease_ends_adds_its_time_to_the_run(ledger):
    done, retried, dead = jobs = [make_job(instance=f"i{n}") for n in range(3)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        lasted(ledger, job, 100)
    publish(ledger, make_record(done))
    assert slot_s(ledger) == pytest.approx(100, abs=9)
    ledger.requeue(Claim(retried.trajectory_id, 1), owner="w1")
    assert slot_s(ledger) == pytest.approx(200, abs=18)
    sweep = swept(ledger)
    age_lease(ledger, dead)
    assert sweep() == [dead.trajectory_id]
    assert slot_s(ledger) == pytest.approx(300, abs=27)
    good = goodput_of_run(ledger, "run")
    assert good.seconds["death"] == pytest.approx(100, abs=9)
    assert good.leased_s == pytest.approx(slot_s(ledger))
    begin(ledger, retried)
    lasted(ledger, retried, 50)
    Runs(ledger).cancel("run")
    assert slot_s(ledger) == pytest.approx(350, abs=36)


def ended_after(ledger: Ledger, start: object) -> float:
    """Slot seconds of a run whose one lease began at a time that was tampered with."""
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "begun", start)
    assert publish(ledger, make_record(job)) == "group"
    return slot_s(ledger)


@pytest.mark.parametrize("start", ["9999999999", "nan", "soon", "inf"])
def test_a_start_in_the_future_or_of_another_kind_charges_nothing(ledger, start):
    assert ended_after(ledger, start) == 0


def test_no_lease_is_charged_more_than_thirty_days(ledger):
    assert ended_after(ledger, "-inf") == 30 * 86400


def test_a_run_with_a_budget_of_slot_time_pauses_when_it_is_spent(ledger):
    set_budgets(ledger, "run", {"slot_s": 60})
    first, second = make_job(instance="a"), make_job(instance="b")
    enqueue(ledger, first, second)
    begin(ledger, first)
    lasted(ledger, first, 61)
    publish(ledger, make_record(first))
    assert begin(ledger, second).verdict == "paused"
    assert "slot_s" in Runs(ledger).paused("run").reason


def test_a_report_that_is_repeated_counts_once(ledger):
    for number in (1, 1, 2, 1):
        report(ledger, number, s_model=10, n_measured=1)
    assert goodput_of_run(ledger, "run").seconds == {"model": 20}
    assert goodput_of_fleet(ledger).attempts == {"measured": 2}
    lately = Tally(ledger).lately(600, now=time.time())
    assert goodput_of(lately.accounts).seconds == {"model": 20}
    assert lately.ended == {}


def taken_back(ledger: Ledger) -> None:
    """A job was leased for 100 s, and its lease ran out 20 s ago."""
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    lasted(ledger, job, 100)
    sweep = swept(ledger)
    age_lease(ledger, job)
    assert sweep() == [job.trajectory_id]
    epoch, owner, begun, rest = ledger.client.hget(f"hq:traj:{job.trajectory_id}", "lost").split()
    lost = [epoch.decode(), owner.decode(), str(float(begun) - 20), rest.decode()]
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "lost", " ".join(lost))


def test_the_time_of_a_lease_that_ran_out_counts_once_if_its_worker_publishes_after_all(ledger):
    taken_back(ledger)
    assert publish(ledger, make_record(make_job())) == "group"
    report(ledger, 1, s_model=120)
    good = goodput_of_run(ledger, "run")
    assert good.seconds["death"] == pytest.approx(0, abs=1e-9)
    assert slot_s(ledger) == pytest.approx(120, abs=9)
    assert good.leased_s == pytest.approx(max(120, slot_s(ledger)))


def test_the_time_of_a_worker_that_is_dead_stays_that_of_a_death(ledger):
    taken_back(ledger)
    ledger.client.hset("hq:life:w1", "outlived", 1)
    assert publish(ledger, make_record(make_job())) == "group"  # from its disk
    good = goodput_of_run(ledger, "run")
    assert good.seconds["death"] == pytest.approx(100, abs=9)
    assert good.leased_s == pytest.approx(slot_s(ledger))


def test_what_nobody_reported_is_an_account_of_its_own(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    lasted(ledger, job, 100)
    publish(ledger, make_record(job))
    report(ledger, 1, s_model=40, s_tools=20, c_scored=1)
    good = goodput_of_run(ledger, "run")
    assert good.seconds[UNACCOUNTED] == pytest.approx(40, abs=9)
    assert good.leased_s == pytest.approx(slot_s(ledger))
    assert good.per_slot_hour == pytest.approx(3600 / slot_s(ledger))


def test_the_time_of_a_dropped_group_is_lost_and_its_members_do_not_count(ledger):
    policy = {"drop_zero_variance": True}
    jobs = [make_job(sample=n, size=2, group_policy=policy) for n in range(2)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        lasted(ledger, job, 50)
    assert [publish(ledger, make_record(job, 1.0)) for job in jobs] == ["ok", "dropped"]
    report(ledger, 1, s_model=150, s_tools=50, c_scored=4)
    good = goodput_of_run(ledger, "run")
    assert good.seconds["dropped"] == pytest.approx(100, abs=9)
    assert good.seconds["model"] == pytest.approx(3 * good.seconds["tools"])
    assert good.leased_s == pytest.approx(200)
    assert good.scored == 2


def test_a_sample_that_has_become_stale_is_lost(ledger):
    policy = {"max_policy_lag": 0, "on_stale": "drop"}
    jobs = [make_job(sample=n, size=2, group_policy=policy) for n in range(2)]
    enqueue(ledger, *jobs)
    for job, version in zip(jobs, (1, 2), strict=True):
        ledger.call("run_policy", run_id="run", version=version, force=False, run_ttl_s=60)
        begin(ledger, job)
        lasted(ledger, job, 50)
        publish(ledger, make_record(job, policy=str(version)))
    report(ledger, 1, s_model=200, c_scored=2)
    good = goodput_of_run(ledger, "run")
    assert good.seconds["stale"] == pytest.approx(50, abs=9)
    assert good.scored == 1


def test_the_course_of_a_run_has_few_intervals_however_long_it_is(ledger):
    for start in range(0, 3200, 1600):
        old = {f"{n}|ended": 1 for n in range(start, start + 1600)}
        ledger.client.hset("hq:series:run", mapping=old)
    add_report(ledger, "w1", 1, counts=(), moments=[("run", "ended", 5)], slow=())
    course = course_of(ledger, "run")
    assert len(course) <= 1602
    assert {each.width_s for each in course} == {120}
    assert sum(each.sums["ended"] for each in course) == 3205
    assert abs(course[-1].at - time.time()) < 300
    assert course[-1].sums["ended"] == 5


def test_only_the_slowest_trajectories_are_kept(ledger):
    rows = [("run", f"item with spaces {n} run.g.{n}", n) for n in range(80)]
    add_report(ledger, "w1", 1, counts=(), moments=(), slow=rows)
    found = slowest_of(ledger, "run", most=100)
    assert len(found) == 50
    assert found[0] == ("item with spaces 79", "run.g.79", 79.0)


def test_a_failed_attempt_pays_for_its_slot_too(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    lasted(ledger, job, 50)
    failure = Failure(cause="model", stage="agent", type="ModelError", message="503")
    attempt = AttemptRecord(attempt=1, epoch=1, failure=failure)
    ledger.requeue(Claim(job.trajectory_id, 1), owner="w1", failed_attempt=attempt)
    assert slot_s(ledger) == pytest.approx(50, abs=9)
    assert ledger.client.ttl("hq:run:run") > 0


def test_all_accounts_of_a_run_go_when_it_is_purged(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, make_record(job))
    rows = [("run", "ended", 1)]
    add_report(ledger, "w1", 1, counts=rows, moments=rows, slow=[("run", "i t", 1)])
    keys = ("hq:goodput:run", "hq:series:run", "hq:slowest:run")
    assert ledger.client.exists(*keys) == 3
    assert all(ledger.client.ttl(key) > 0 for key in keys)
    Runs(ledger).purge("run")
    assert ledger.client.exists(*keys) == 0
