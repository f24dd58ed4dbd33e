"""One view of a model endpoint's limits for the whole fleet."""

from __future__ import annotations

import random
import time

import pytest

from hermes_queue.ledger.fleet.limiter import EndpointLimits, limit_name
from hermes_queue.settings import LimiterSettings

NAME = "http://127.0.0.1:8000/v1|m"
KEY = f"hq:limit:{NAME}"


def limits_of(ledger, *, lease_s=3600.0, **settings):
    return EndpointLimits(ledger, LimiterSettings(**settings), lease_s=lease_s)


def granted(limits, *requests, **options):
    """Take leave for each, all of which must get it; returns when."""
    answers = [limits.acquire(NAME, request, **options) for request in requests]
    assert all(answer.granted for answer in answers)
    return answers[-1].at


def a_round(limits, calls, *, outcome="ok", tag="r"):
    """So many calls at once, all with one outcome."""
    names = [f"{tag}{n}" for n in range(calls)]
    at = granted(limits, *names)
    for name in names:
        assert limits.release(NAME, name, outcome, granted_at=at)


def limit(limits):
    return limits.state(NAME).limit


def test_an_endpoint_nobody_called_has_no_state(ledger):
    assert limits_of(ledger).state(NAME) is None


def test_as_many_calls_as_the_limit_allows_are_granted_at_once(ledger):
    limits = limits_of(ledger, start_calls=2)
    granted(limits, "a", "b")
    third = limits.acquire(NAME, "c")
    assert not third.granted
    assert 0 < third.wait_s <= 5
    state = limits.state(NAME)
    assert (state.leased, state.waiting, state.granted) == (2, 1, 2)


def test_a_place_that_is_given_back_goes_to_who_asked_first(ledger):
    limits = limits_of(ledger, start_calls=1, max_calls=1)
    granted(limits, "a")
    first = limits.acquire(NAME, "first")
    second = limits.acquire(NAME, "second")
    limits.release(NAME, "a")
    assert not limits.acquire(NAME, "second", since=second.since).granted
    assert not limits.acquire(NAME, "newcomer").granted
    assert limits.acquire(NAME, "first", since=first.since).granted


def test_who_asks_no_more_is_not_waited_for_but_keeps_its_place(ledger):
    limits = limits_of(ledger, start_calls=1, max_calls=1)
    granted(limits, "a")
    silent = limits.acquire(NAME, "silent")
    second = limits.acquire(NAME, "second")
    ledger.client.zadd(f"{KEY}:seen", {"silent": time.time() - 1})
    limits.release(NAME, "a")
    assert limits.acquire(NAME, "second", since=second.since).granted
    third = limits.acquire(NAME, "third")
    assert not limits.acquire(NAME, "silent", since=silent.since).granted
    limits.release(NAME, "second")
    assert not limits.acquire(NAME, "third", since=third.since).granted
    assert limits.acquire(NAME, "silent", since=silent.since).granted


def test_asking_again_for_what_was_granted_takes_no_second_place(ledger):
    limits = limits_of(ledger, start_calls=2)
    granted(limits, "a", "a", "a")
    assert limits.state(NAME).leased == 1


def test_giving_back_twice_counts_once(ledger):
    limits = limits_of(ledger, start_calls=4)
    at = granted(limits, "a")
    assert limits.release(NAME, "a", "refused", granted_at=at)
    assert not limits.release(NAME, "a", "refused", granted_at=at)
    assert limits.state(NAME).refused == 1


def test_a_waiter_that_gives_up_is_not_waited_for(ledger):
    limits = limits_of(ledger, start_calls=1, max_calls=1)
    granted(limits, "a")
    limits.acquire(NAME, "impatient")
    second = limits.acquire(NAME, "second")
    limits.release(NAME, "impatient")
    limits.release(NAME, "a")
    assert limits.acquire(NAME, "second", since=second.since).granted


def test_leases_of_a_dead_worker_end_by_themselves(ledger):
    limits = limits_of(ledger, start_calls=1, max_calls=1)
    granted(limits, "dead")
    ledger.client.zadd(f"{KEY}:leases", {"dead": time.time() - 1})
    assert limits.state(NAME).leased == 0
    granted(limits, "b")


def test_a_renewed_lease_lasts_and_one_given_back_stays_so(ledger):
    limits = limits_of(ledger, start_calls=4)
    granted(limits, "long", "done")
    limits.release(NAME, "done")
    ledger.client.zadd(f"{KEY}:leases", {"long": time.time() + 1})
    assert limits.renew(NAME, ["long", "done"]) == 1
    assert ledger.client.zscore(f"{KEY}:leases", "long") > time.time() + 30
    assert limits.state(NAME).leased == 1


# --- the limit adapts -------------------------------------------------------------------------


def test_until_the_first_refusal_a_round_doubles_the_limit(ledger):
    limits = limits_of(ledger, start_calls=4, max_calls=100)
    a_round(limits, 4)
    assert 5 <= limit(limits) <= 8


def test_a_limit_that_is_not_used_up_does_not_grow(ledger):
    limits = limits_of(ledger, start_calls=4, max_calls=100)
    a_round(limits, 3)
    assert limit(limits) == 4


def test_a_refusal_shrinks_the_limit(ledger):
    limits = limits_of(ledger, start_calls=10)
    names = [f"a{n}" for n in range(10)]
    at = granted(limits, *names)
    limits.release(NAME, "a0", "refused", granted_at=at)
    assert limit(limits) == pytest.approx(8)


def test_calls_granted_before_the_limit_shrank_do_not_shrink_it_again(ledger):
    limits = limits_of(ledger, start_calls=10)
    a_round(limits, 10, outcome="refused")
    assert limit(limits) == pytest.approx(8)
    assert limits.state(NAME).refused == 10
    a_round(limits, 8, outcome="refused", tag="s")
    assert limit(limits) == pytest.approx(6.4)


def test_one_refusal_of_a_few_calls_never_takes_more_than_sixty_percent(ledger):
    limits = limits_of(ledger, start_calls=100)
    a_round(limits, 1, outcome="refused")
    assert limit(limits) == pytest.approx(40)


def test_the_limit_stays_within_its_bounds(ledger):
    limits = limits_of(ledger, start_calls=4, min_calls=3, max_calls=5)
    for n in range(3):
        a_round(limits, 3, outcome="refused", tag=f"down{n}-")
    assert limit(limits) == 3
    for n in range(100):
        a_round(limits, int(limit(limits)), tag=f"up{n}-")
    assert limit(limits) == 5


def test_the_limit_returns_to_where_calls_were_served_and_stays_a_while(ledger):
    limits = limits_of(ledger, start_calls=11, probe_rounds=30)
    at = granted(limits, *(f"a{n}" for n in range(11)))
    limits.release(NAME, "a10", "refused", granted_at=at)
    for n in range(10):
        limits.release(NAME, f"a{n}", granted_at=at)
    assert limits.state(NAME).ceiling == 10
    for n in range(20):
        a_round(limits, int(limit(limits)), tag=f"b{n}-")
    assert limit(limits) == 10
    for n in range(20):
        a_round(limits, int(limit(limits)), tag=f"c{n}-")
    assert limit(limits) > 10


class Endpoint:
    """Serves `cap` calls at once; as many as are allowed are made all the time."""

    def __init__(self, limits, cap):
        self.limits, self.cap = limits, cap
        self.inside = []
        self.served = self.number = 0

    def until_refused(self):
        """How many calls were served before one was refused."""
        self.served = 0
        while True:
            self.number += 1
            answer = self.limits.acquire(NAME, f"call{self.number}", since="1")
            if not answer.granted:
                self.limits.release(NAME, f"call{self.number}")
                self.serve()
            elif len(self.inside) < self.cap:
                self.inside.append((f"call{self.number}", answer))
            else:
                self.report(f"call{self.number}", answer, "refused")
                while self.inside:
                    self.serve()
                return self.served

    def serve(self):
        self.report(*self.inside.pop(0), "ok")
        self.served += 1

    def report(self, request, answer, outcome):
        self.limits.release(NAME, request, outcome, granted_at=answer.at, among=answer.among)


def test_a_look_beyond_the_ceiling_that_was_in_vain_is_taken_less_often(ledger):
    endpoint = Endpoint(limits_of(ledger, start_calls=8, probe_rounds=5), cap=10)
    endpoint.until_refused()
    looks = [endpoint.until_refused() for _ in range(5)]
    assert 50 <= looks[0] < looks[1] < looks[2] < 400
    assert looks[2] == looks[3] == looks[4]
    assert limit(endpoint.limits) == pytest.approx(0.8 * 11)


def test_an_endpoint_that_serves_more_than_before_is_given_more(ledger):
    endpoint = Endpoint(limits_of(ledger, start_calls=8, probe_rounds=5), cap=10)
    for _ in range(4):
        endpoint.until_refused()
    endpoint.cap = 30
    endpoint.until_refused()
    assert endpoint.limits.state(NAME).ceiling == 30
    assert endpoint.until_refused() < 400, "the next look comes as soon as the first one did"


def test_an_endpoint_that_serves_less_than_before_is_given_less(ledger):
    endpoint = Endpoint(limits_of(ledger, start_calls=30, probe_rounds=5), cap=30)
    endpoint.until_refused()
    endpoint.cap = 5
    for _ in range(10):
        endpoint.until_refused()
    assert endpoint.limits.state(NAME).ceiling == 5
    assert limit(endpoint.limits) <= 5


def test_a_refusal_is_weighed_by_the_calls_there_were_when_it_was_made(ledger):
    limits = limits_of(ledger, start_calls=11)
    at = granted(limits, *(f"a{n}" for n in range(10)))
    last = limits.acquire(NAME, "last")
    assert last.among == 11
    for n in range(5):
        limits.release(NAME, f"a{n}", granted_at=at)
    limits.release(NAME, "last", "refused", granted_at=last.at, among=last.among)
    assert limits.state(NAME).ceiling == 10


def test_failures_that_say_nothing_of_the_limit_leave_it_alone(ledger):
    limits = limits_of(ledger, start_calls=4)
    a_round(limits, 4, outcome="")
    assert limit(limits) == 4


# --- pauses -----------------------------------------------------------------------------------


def test_a_pause_is_honoured_by_everybody_and_takes_nothing_from_the_limit(ledger):
    limits, other = limits_of(ledger, start_calls=4), limits_of(ledger, start_calls=4)
    at = granted(limits, "a")
    limits.release(NAME, "a", "paused", granted_at=at, pause_s=7)
    answer = other.acquire(NAME, "b")
    assert not answer.granted
    assert 5 < answer.wait_s <= 7
    state = limits.state(NAME)
    assert (state.limit, state.refused, state.paused) == (4, 0, 1)


def test_the_longest_pause_holds_but_nobody_sleeps_through_it_whole(ledger):
    limits = limits_of(ledger, start_calls=4)
    at = granted(limits, "a", "b")
    limits.release(NAME, "a", "refused", granted_at=at, pause_s=300)
    limits.release(NAME, "b", "refused", granted_at=at, pause_s=1)
    assert limits.state(NAME).pause_s > 200
    assert limits.acquire(NAME, "c").wait_s == 10


def test_after_a_pause_calls_go_on(ledger):
    limits = limits_of(ledger, start_calls=4)
    at = granted(limits, "a")
    limits.release(NAME, "a", "paused", granted_at=at, pause_s=300)
    ledger.client.hset(KEY, "pause_until", time.time() - 1)
    granted(limits, "b")


# --- calls and tokens a minute ----------------------------------------------------------------


def admitted(limits, count, *, tokens=0):
    """How many of so many calls, one after another, may begin at once."""
    total = 0
    for n in range(count):
        answer = limits.acquire(NAME, f"call{n}", tokens=tokens)
        total += answer.granted and answer.wait_s == 0
        limits.release(NAME, f"call{n}")
    return total


def test_calls_beyond_the_rate_and_its_burst_wait(ledger):
    limits = limits_of(ledger, requests_per_minute=6, burst_s=100)
    assert admitted(limits, 30) == 11
    answer = limits.acquire(NAME, "late")
    assert 0 < answer.wait_s <= 10


def test_room_that_comes_soon_is_promised(ledger):
    limits = limits_of(ledger, requests_per_minute=60, burst_s=0)
    assert limits.acquire(NAME, "a").wait_s == 0
    second = limits.acquire(NAME, "b")
    assert second.granted
    assert 0 < second.wait_s <= 1


def test_tokens_beyond_the_rate_wait_and_a_big_call_passes_an_idle_bucket(ledger):
    limits = limits_of(ledger, tokens_per_minute=60, burst_s=30)
    assert admitted(limits, 10, tokens=20) == 2
    other = limits_of(ledger, tokens_per_minute=60, burst_s=30)
    ledger.client.delete(KEY)
    assert admitted(other, 10, tokens=10_000) == 1


def test_tokens_that_were_not_used_are_given_back(ledger):
    limits = limits_of(ledger, tokens_per_minute=60, burst_s=30)
    granted(limits, "a", tokens=1000)
    limits.release(NAME, "a", "ok", granted_at=time.time(), more_tokens=-990)
    assert limits.acquire(NAME, "b").wait_s == 0


def test_tokens_that_were_not_expected_are_charged(ledger):
    limits = limits_of(ledger, tokens_per_minute=60, burst_s=30)
    granted(limits, "a", tokens=10)
    limits.release(NAME, "a", "ok", granted_at=time.time(), more_tokens=990)
    assert not limits.acquire(NAME, "b").granted


def test_waiting_for_a_bucket_holds_no_place_of_others(ledger):
    limits = limits_of(ledger, start_calls=1, max_calls=1, tokens_per_minute=60, burst_s=0)
    at = granted(limits, "a", tokens=100)
    limits.release(NAME, "a", "ok", granted_at=at)
    assert not limits.acquire(NAME, "b", tokens=1).granted
    assert limits.state(NAME).leased == 0


# --- keys -------------------------------------------------------------------------------------


def test_a_clock_of_redis_that_was_set_back_keeps_no_call_waiting(ledger):
    """As of before the clock was set back by an hour: times are an hour ahead."""
    limits = limits_of(ledger, requests_per_minute=600, burst_s=0, max_calls=1)
    limits.release(NAME, "a", granted_at=granted(limits, "a"))
    granted(limits, "holds")
    first = limits.acquire(NAME, "first")
    ahead = dict.fromkeys(("at", "rpm_tat", "pause_until", "decreased_at"), time.time() + 3600)
    ledger.client.hset(KEY, mapping=ahead)
    for part, name in (("leases", "holds"), ("waiting", "first"), ("seen", "first")):
        ledger.client.zincrby(f"{KEY}:{part}", 3600, name)
    assert not limits.acquire(NAME, "late").granted
    limits.release(NAME, "holds")
    assert not limits.acquire(NAME, "late").granted, "who asked first waits on"
    again = limits.acquire(NAME, "first", since=str(float(first.since) + 3600))
    assert again.granted
    assert again.wait_s <= 1
    assert max(map(float, ledger.client.hmget(KEY, list(ahead)))) < time.time() + 60


def test_everything_expires(ledger):
    limits = limits_of(ledger, start_calls=1, requests_per_minute=60)
    at = granted(limits, "a")
    limits.acquire(NAME, "b")
    limits.renew(NAME, ["a"])
    limits.release(NAME, "a", "ok", granted_at=at)
    keys = list(ledger.client.scan_iter("*"))
    assert keys
    assert all(key.startswith(KEY.encode()) for key in keys)
    assert all(ledger.client.ttl(key) > 0 for key in keys)


def test_models_and_endpoints_have_limits_of_their_own(ledger):
    limits = limits_of(ledger, start_calls=1, max_calls=1)
    for endpoint in ("http://a/v1", "http://b/v1"):
        for model in ("m", "n"):
            assert limits.acquire(limit_name(endpoint, model), "x").granted


def test_the_name_of_a_limit_holds_no_credentials():
    assert limit_name("https://user:secret@h:1/v1/", "m") == limit_name("https://h:1/v1", "m")
    assert "secret" not in limit_name("https://user:secret@h:1/v1?key=secret", "m")


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_no_more_than_the_limit_are_leased(ledger, seed):
    """Also with answers that are lost, so that calls are repeated."""
    dice = random.Random(seed)
    limits = limits_of(ledger, start_calls=3, max_calls=6)
    since, held = {}, {}
    for step in range(300):
        request = f"q{dice.randrange(12)}"
        before = limits.state(NAME)
        if request in held and dice.random() < 0.6:
            outcome = dice.choice(["ok", "ok", "ok", "refused", "paused", ""])
            for _ in range(dice.choice([1, 2])):
                limits.release(NAME, request, outcome, granted_at=held[request])
            del held[request]
        else:
            answer = limits.acquire(NAME, request, since=since.get(request, ""))
            since[request] = answer.since
            if answer.granted:
                held[request] = answer.at
                del since[request]
                fresh = before is None or limits.state(NAME).leased > before.leased
                assert not fresh or len(held) <= (before.limit if before else 3), step
        state = limits.state(NAME)
        assert state.leased == len(held)
        assert 1 <= state.limit <= 6
