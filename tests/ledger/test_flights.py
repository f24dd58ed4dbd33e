"""One view of a model engine's room for the whole fleet."""

from __future__ import annotations

import pytest

from hermes_queue.ledger.fleet.flights import (
    EngineFlights,
    InFlight,
    engine_name,
    engine_names,
    engine_state,
)
from hermes_queue.settings import EngineSettings

NAME = "http://127.0.0.1:8000/v1"
KEY = f"hq:flights:{NAME}"


def flights_of(ledger, *, lease_s=3600.0, **settings):
    return EngineFlights(ledger, EngineSettings(min_trajectories=1, **settings), lease_s=lease_s)


def counted(ledger, **settings):
    """An engine whose cache is known to hold 10,000 tokens, all of which may be used."""
    return flights_of(ledger, **{"kv_tokens": 10_000, "fill": 1.0, **settings})


def asking(*pairs, since=""):
    return [InFlight(name, since, tokens) for name, tokens in pairs]


def test_contexts_are_admitted_while_they_fit(ledger):
    flights = counted(ledger)
    answer = flights.exchange(NAME, asking=asking(("a", 5000), ("b", 4000), ("c", 1000)))
    assert (answer.verdict, answer.granted) == ("counted", {"a", "b"})
    state = engine_state(ledger, NAME)
    assert (state.flying, state.waiting, state.tokens) == (2, 1, 9000)


def test_a_place_goes_to_who_asked_first_and_is_kept_for_another_process(ledger):
    flights = counted(ledger)
    flights.exchange(NAME, asking=asking(("a", 9000)))
    first = flights.exchange(NAME, asking=asking(("first", 9000)))
    flights.exchange(NAME, asking=asking(("second", 500)))
    answer = flights.exchange(NAME, ended=[("a", 0)], asking=asking(("second", 500)))
    assert answer.granted == {"second"}  # the first one fits, too
    answer = flights.exchange(NAME, ended=[("second", 0)], asking=asking(("third", 9000)))
    assert not answer.granted
    answer = flights.exchange(NAME, asking=asking(("first", 9000), since=first.at))
    assert answer.granted == {"first"}


def test_one_that_never_fits_waits_until_it_is_alone(ledger):
    flights = counted(ledger)
    flights.exchange(NAME, asking=asking(("a", 100)))
    assert not flights.exchange(NAME, asking=asking(("huge", 10**9))).granted
    assert not flights.exchange(NAME, asking=asking(("small", 100))).granted
    answer = flights.exchange(NAME, ended=[("a", 0)], asking=asking(("huge", 10**9)))
    assert answer.granted == {"huge"}


def test_the_youngest_are_stopped_when_contexts_outgrow_the_cache(ledger):
    flights = counted(ledger)
    old = flights.exchange(NAME, asking=asking(("old", 1000))).at
    young = flights.exchange(NAME, asking=asking(("young", 1000))).at
    held = [InFlight("old", old, 8000), InFlight("young", young, 3000)]
    answer = flights.exchange(NAME, held=held)
    assert answer.stopped == {"young"}
    again = flights.exchange(NAME, asking=[InFlight("young", young, 3000)])
    assert not again.granted
    again = flights.exchange(NAME, ended=[("old", 0)], asking=[InFlight("young", young, 3000)])
    assert again.granted == {"young"}


def test_a_process_stops_only_its_own(ledger):
    flights = counted(ledger)
    old = flights.exchange(NAME, asking=asking(("old", 1000))).at
    flights.exchange(NAME, asking=asking(("young", 3000)))
    assert not flights.exchange(NAME, held=[InFlight("old", old, 8000)]).stopped
    assert engine_state(ledger, NAME).flying == 2


def test_room_is_kept_for_young_contexts_to_become_usual_ones(ledger):
    flights = counted(ledger)
    flights.exchange(NAME, asking=asking(("a", 10)))
    flights.exchange(NAME, ended=[("a", 5000)])  # so long was its context on average
    answer = flights.exchange(NAME, asking=asking(("b", 10), ("c", 10), ("d", 10), ("e", 10)))
    assert answer.granted == {"b", "c"}


def test_an_estimate_takes_no_more_than_usual(ledger):
    flights = counted(ledger)
    flights.exchange(NAME, asking=asking(("a", 10)))
    flights.exchange(NAME, ended=[("a", 100)])
    guessed = [InFlight(name, "", 9000, known=False) for name in ("b", "c")]
    assert flights.exchange(NAME, asking=guessed).granted == {"b", "c"}


def test_flights_of_a_dead_worker_end_with_their_leases(ledger):
    dead, alive = counted(ledger, lease_s=3600), counted(ledger)
    dead.exchange(NAME, asking=asking(("a", 9000)))
    ledger.client.zadd(f"{KEY}:alive", {"a": 1.0})
    assert alive.exchange(NAME, asking=asking(("b", 9000))).granted == {"b"}
    assert engine_state(ledger, NAME).flying == 1


def test_what_redis_has_forgotten_is_counted_again_when_it_is_held(ledger):
    flights = counted(ledger)
    since = flights.exchange(NAME, asking=asking(("a", 9000))).at
    ledger.client.flushall()
    assert not flights.exchange(NAME, held=[InFlight("a", since, 9000)]).stopped
    assert engine_state(ledger, NAME).tokens == 9000


def test_one_process_at_a_time_is_told_to_read(ledger):
    flights = flights_of(ledger, interval_s=3600)
    first = flights.exchange(NAME, asking=asking(("a", 10)))
    second = flights.exchange(NAME, asking=asking(("b", 10)))
    assert (first.verdict, second.verdict) == ("asked", "asked")
    assert first.order is not None
    assert second.order is None
    assert not first.granted


def test_a_reading_opens_the_way_for_what_fits(ledger):
    flights = flights_of(ledger, interval_s=3600)
    order = flights.exchange(NAME, asking=asking(("a", 10), ("b", 10**6))).order
    assert flights.report(NAME, order, kv_tokens=10_000, level=0.5, memo='{"x": 1}')
    answer = flights.exchange(NAME, asking=asking(("a", 10), ("b", 10**6)))
    assert (answer.verdict, answer.granted) == ("counted", {"a"})
    state = engine_state(ledger, NAME)
    assert (state.kv_tokens, state.level, state.memo) == (10_000, 0.5, {"x": 1})


def test_a_late_reading_is_superseded(ledger):
    flights = flights_of(ledger, interval_s=0.05)
    late = flights.exchange(NAME).order
    order = None
    while order is None:
        order = flights.exchange(NAME).order
    assert not flights.report(NAME, late, kv_tokens=2000)
    assert flights.report(NAME, order, kv_tokens=3000)
    assert engine_state(ledger, NAME).kv_tokens == 3000


def test_an_endpoint_without_metrics_is_left_alone_for_a_while(ledger):
    flights = flights_of(ledger, interval_s=3600, retry_s=500)
    order = flights.exchange(NAME, asking=asking(("a", 10))).order
    assert flights.report(NAME, order)
    answer = flights.exchange(NAME, asking=asking(("a", 10), ("b", 10**6)))
    assert (answer.verdict, answer.granted, answer.order) == ("absent", {"a", "b"}, None)
    assert 490 < answer.absent_s <= 500


def test_the_last_reading_counts_while_the_metrics_fail_and_then_nobody_waits(ledger):
    flights = flights_of(ledger, interval_s=0.05, hold_s=3600)
    order = flights.exchange(NAME).order
    flights.report(NAME, order, kv_tokens=10_000, level=1.0)
    order = None
    while order is None:
        order = flights.exchange(NAME).order
    flights.report(NAME, order)  # it failed
    assert not flights.exchange(NAME, asking=asking(("a", 9000), ("b", 9000))).granted == {"a", "b"}
    ledger.client.hset(KEY, "until", "1.0")
    answer = flights.exchange(NAME, asking=asking(("b", 9000)))
    assert (answer.verdict, answer.granted) == ("open", {"b"})


def test_a_first_reading_that_never_comes_holds_nobody_for_long(ledger):
    flights = flights_of(ledger, interval_s=3600)
    flights.exchange(NAME, asking=asking(("a", 10)))
    ledger.client.hset(KEY, "first", "1.0")
    assert flights.exchange(NAME, asking=asking(("a", 10))).granted == {"a"}


@pytest.mark.parametrize("step_s", [-5000, 5000])
def test_a_clock_that_was_changed_keeps_nobody_waiting(ledger, step_s):
    flights = counted(ledger)
    since = flights.exchange(NAME, asking=asking(("a", 9000))).at
    client = ledger.client
    for field in ("at", "first", "turn"):
        client.hset(KEY, field, float(client.hget(KEY, field)) - step_s)
    for part in ("flying", "alive"):
        client.zincrby(f"{KEY}:{part}", -step_s, "a")
    assert not flights.exchange(NAME, held=[InFlight("a", since, 9000)]).stopped
    assert not flights.exchange(NAME, asking=asking(("b", 9000))).granted
    answer = flights.exchange(NAME, ended=[("a", 0)], asking=asking(("b", 9000)))
    assert answer.granted == {"b"}


def test_everything_expires(ledger):
    flights = counted(ledger)
    order = flights.exchange(NAME, asking=asking(("a", 9000), ("b", 9000))).order
    flights.report(NAME, order, kv_tokens=10_000, level=1.0, memo="{}")
    keys = list(ledger.client.scan_iter("*"))
    assert keys
    assert all(key.startswith(KEY.encode()) for key in keys)
    assert all(ledger.client.ttl(key) > 0 for key in keys)


def test_an_engine_is_named_without_credentials():
    assert engine_name("http://user:secret@host:8000/v1/") == "http://host:8000/v1"


@pytest.mark.parametrize("part", [":flying", ":tokens", ":alive"])
def test_no_endpoint_can_be_named_like_the_keys_of_another(ledger, part):
    flights = EngineFlights(ledger, EngineSettings(), lease_s=60)
    for url in (f"http://127.0.0.1:9/x{part}", "http://127.0.0.1:9/x"):
        asking = [InFlight("t", "", 10)]
        assert flights.exchange(engine_name(url), asking=asking).verdict == "asked"
    assert len(engine_names(ledger)) == 2
