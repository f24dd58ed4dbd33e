"""A lane whose attempts keep failing of one cause pauses, tries one job at a time, goes on."""

from __future__ import annotations

import time

import pytest
from ledger_steps import begin, enqueue, take
from records import make_job

from hermes_queue.ledger import Breakers
from hermes_queue.ledger.fleet.lanes import EndedAttempts as Ended
from hermes_queue.ledger.fleet.lanes import Watched
from hermes_queue.models import AgentSpec
from hermes_queue.settings import BreakerSettings

TRAIN = Watched("train")
DOWN = AgentSpec(kind="openai", model="m", base_url="http://down.example/v1")
ENDPOINT = Watched.endpoint_of("train", DOWN)
SETTINGS = BreakerSettings(min_failures=4, rate=0.5, open_s=60)


@pytest.fixture
def breakers(ledger):
    return Breakers(ledger, SETTINGS)


def past(ledger, field):
    """Let the moment `field` of the lane be over."""
    ledger.client.hset("hq:lane:train", field, time.time() - 1000)


def opened(breakers):
    assert breakers.record(TRAIN, {"sandbox": Ended(4, "503 from the provider")}) == "open"


def endpoint_opened(breakers, run_id=""):
    failed = {"model": Ended(4, "500 from the server", run_id)}
    assert breakers.record(ENDPOINT, failed) == "open"


def test_failures_of_one_cause_open_the_breaker_with_a_message(breakers):
    assert breakers.record(TRAIN, {"sandbox": Ended(3, "503"), "": Ended(2, "")}) == ""
    assert breakers.record(TRAIN, {"sandbox": Ended(1, "503 from the provider")}) == "open"
    state = breakers.state("train")
    assert (state.state, state.cause) == ("open", "sandbox")
    assert state.message == "4 of 6 attempts failed: 503 from the provider"
    assert state.until > state.opened


def test_too_few_failures_or_too_low_a_rate_open_nothing(breakers):
    assert breakers.record(TRAIN, {"sandbox": Ended(3, "503")}) == ""
    assert breakers.record(Watched("eval"), {"sandbox": Ended(4, "503"), "": Ended(5, "")}) == ""
    assert breakers.state("train").state == breakers.state("eval").state == "closed"


def test_failures_of_single_jobs_and_of_endpoints_do_not_count_for_the_lane(breakers):
    assert (
        breakers.record(
            TRAIN,
            {
                "env_bug": Ended(9, "x"),
                "deadline": Ended(9, "x"),
                "model": Ended(9, "x"),
            },
        )
        == ""
    )


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
    assert breakers.record(TRAIN, {"": Ended(1, "")}) == "closed"
    assert breakers.state("train").state == "closed"
    assert not ledger.client.exists("hq:lane:train", "hq:lane:train:outcomes")


def test_a_probe_that_fails_opens_it_for_twice_as_long(ledger, breakers):
    job = make_job()
    enqueue(ledger, job)
    opened(breakers)
    past(ledger, "until")
    begin(ledger, job)
    before = breakers.state("train").opened
    assert breakers.record(TRAIN, {"sandbox": Ended(1, "still 503")}) == "open"
    state = breakers.state("train")
    assert (state.opened, state.message) == (before, "still 503")
    assert state.until > time.time() + 1.5 * SETTINGS.open_s


def test_results_of_older_attempts_do_not_close_a_breaker_that_is_open(breakers):
    opened(breakers)
    assert breakers.record(TRAIN, {"": Ended(5, "")}) == ""
    assert breakers.state("train").state == "open"


def test_a_breaker_is_closed_by_hand(ledger, breakers):
    job = make_job()
    enqueue(ledger, job)
    opened(breakers)
    assert breakers.close("train")
    assert not breakers.close("train")
    assert begin(ledger, job).verdict == "run"


def test_half_of_a_surrogate_pair_in_a_message_costs_no_count(breakers):
    assert breakers.record(TRAIN, {"sandbox": Ended(4, "the server says \ud800")}) == "open"
    assert breakers.state("train").message.endswith("the server says \\ud800")


def test_an_endpoint_that_fails_holds_the_jobs_that_call_it_alone(ledger, breakers):
    calls_it = make_job(agent=DOWN)
    others = [
        make_job("scripted"),
        make_job("elsewhere", agent=DOWN.model_copy(update={"base_url": "http://up.example/v1"})),
        make_job("other", agent=DOWN.model_copy(update={"model": "other"})),
    ]
    enqueue(ledger, calls_it)
    for job in others:
        enqueue(ledger, job)
    endpoint_opened(breakers)
    assert breakers.state("train").state == "closed"
    assert begin(ledger, calls_it).verdict == "held"
    assert [begin(ledger, job).verdict for job in others] == ["run"] * 3


def test_a_held_run_does_not_keep_the_next_one_from_being_chosen(ledger, breakers):
    enqueue(ledger, *(make_job("held", f"i{n}", agent=DOWN) for n in range(40)))
    enqueue(ledger, make_job("free"))
    endpoint_opened(breakers)
    assert take(ledger).trajectory_id == make_job("free").trajectory_id


def test_an_endpoint_is_shown_and_closed_with_its_lane(ledger, breakers):
    job = make_job(agent=DOWN)
    enqueue(ledger, job)
    endpoint_opened(breakers)
    [shown] = breakers.open_endpoints("train")
    assert (shown.endpoint, shown.cause) == ("m at http://down.example/v1", "model")
    assert breakers.close("train")
    assert breakers.open_endpoints("train") == []
    assert begin(ledger, job).verdict == "run"


def test_an_endpoint_that_answers_again_is_no_longer_listed(ledger, breakers):
    job = make_job(agent=DOWN)
    enqueue(ledger, job)
    endpoint_opened(breakers)
    ledger.client.hset(f"hq:lane:{ENDPOINT.breaker}", "until", time.time() - 1000)
    assert begin(ledger, job).verdict == "run"
    assert breakers.record(ENDPOINT, {"": Ended(1)}) == "closed"
    assert not ledger.client.exists("hq:lane:train:endpoints")


@pytest.mark.parametrize("over_s", [1, 1000], ids=["first", "alone"])
def test_another_run_tries_before_the_one_that_failed_last(ledger, breakers, over_s):
    failed, other = (make_job(run_id, agent=DOWN) for run_id in ("failed", "other"))
    enqueue(ledger, failed)
    enqueue(ledger, other)
    endpoint_opened(breakers, "failed")
    ledger.client.hset(f"hq:lane:{ENDPOINT.breaker}", "until", time.time() - over_s)
    is_alone = over_s > 10
    assert begin(ledger, failed).verdict == ("run" if is_alone else "held")
    assert begin(ledger, other).verdict == ("held" if is_alone else "run")
