"""A lane whose attempts keep failing of one cause pauses, tries one job at a time, goes on."""

from __future__ import annotations

import time

import pytest
from ledger_steps import begin, enqueue
from records import make_job

from hermes_queue.ledger import Breakers
from hermes_queue.settings import BreakerSettings

SETTINGS = BreakerSettings(min_failures=4, rate=0.5, open_s=60)


@pytest.fixture
def breakers(ledger):
    return Breakers(ledger, SETTINGS)


def past(ledger, field):
    """Let the moment `field` of the lane be over."""
    ledger.client.hset("hq:lane:train", field, time.time() - 1000)


def opened(breakers):
    assert breakers.record("train", {"model": (4, "503 from the provider")}) == "open"


def test_failures_of_one_cause_open_the_breaker_with_a_message(breakers):
    assert breakers.record("train", {"model": (3, "503"), "": (2, "")}) == ""
    assert breakers.record("train", {"model": (1, "503 from the provider")}) == "open"
    state = breakers.state("train")
    assert (state.state, state.cause) == ("open", "model")
    assert state.message == "4 of 6 attempts failed: 503 from the provider"
    assert state.until > state.opened


def test_too_few_failures_or_too_low_a_rate_open_nothing(breakers):
    assert breakers.record("train", {"model": (3, "503")}) == ""
    assert breakers.record("eval", {"model": (4, "503"), "": (5, "")}) == ""
    assert breakers.state("train").state == breakers.state("eval").state == "closed"


def test_bugs_and_deadlines_of_single_jobs_do_not_count(breakers):
    assert breakers.record("train", {"env_bug": (9, "x"), "deadline": (9, "x")}) == ""


def test_a_job_of_a_paused_lane_is_delayed_without_using_an_attempt(ledger, breakers):
    job, other = make_job(), make_job("other", lane="eval")
    enqueue(ledger, job)
    enqueue(ledger, other)
    opened(breakers)
    assert begin(ledger, job).verdict == "held"
    assert ledger.client.zscore("hq:delayed", job.trajectory_id) > time.time() + 5
    assert ledger.client.hmget(f"hq:traj:{job.trajectory_id}", "state", "attempt", "epoch") == [
        b"queued",
        b"1",
        b"0",
    ]
    assert begin(ledger, other).verdict == "run"


def test_after_the_pause_one_job_at_a_time_is_tried(ledger, breakers):
    jobs = [make_job(instance=f"i{n}") for n in range(2)]
    enqueue(ledger, *jobs)
    opened(breakers)
    past(ledger, "until")
    assert begin(ledger, jobs[0]).verdict == "run"
    assert begin(ledger, jobs[1]).verdict == "held"


def test_a_probe_that_is_never_heard_of_is_followed_by_another(ledger, breakers):
    jobs = [make_job(instance=f"i{n}") for n in range(2)]
    enqueue(ledger, *jobs)
    opened(breakers)
    past(ledger, "until")
    begin(ledger, jobs[0])
    past(ledger, "probe")
    assert begin(ledger, jobs[1]).verdict == "run"


def test_a_probe_that_succeeds_closes_the_breaker(ledger, breakers):
    job = make_job()
    enqueue(ledger, job)
    opened(breakers)
    past(ledger, "until")
    begin(ledger, job)
    assert breakers.record("train", {"": (1, "")}) == "closed"
    assert breakers.state("train").state == "closed"
    assert not ledger.client.exists("hq:lane:train", "hq:lane:train:outcomes")


def test_a_probe_that_fails_opens_it_for_twice_as_long(ledger, breakers):
    job = make_job()
    enqueue(ledger, job)
    opened(breakers)
    past(ledger, "until")
    begin(ledger, job)
    before = breakers.state("train").opened
    assert breakers.record("train", {"model": (1, "still 503")}) == "open"
    state = breakers.state("train")
    assert (state.opened, state.message) == (before, "still 503")
    assert state.until > time.time() + 1.5 * SETTINGS.open_s


def test_results_of_older_attempts_do_not_close_a_breaker_that_is_open(breakers):
    opened(breakers)
    assert breakers.record("train", {"": (5, "")}) == ""
    assert breakers.state("train").state == "open"


def test_a_breaker_is_closed_by_hand(ledger, breakers):
    job = make_job()
    enqueue(ledger, job)
    opened(breakers)
    assert breakers.close("train")
    assert not breakers.close("train")
    assert begin(ledger, job).verdict == "run"


def test_half_of_a_surrogate_pair_in_a_message_costs_no_count(breakers):
    assert breakers.record("train", {"model": (4, "the server says \ud800")}) == "open"
    assert breakers.state("train").message.endswith("the server says \\ud800")
