"""`hermes-queue limits` shows what the fleet knows of its endpoints."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.flights import EngineFlights, InFlight
from hermes_queue.ledger.fleet.limiter import EndpointLimits
from hermes_queue.settings import EngineSettings, LimiterSettings

NAME = "http://127.0.0.1:1/v1|m"
ENGINE = "http://127.0.0.1:1/v1"


@pytest.fixture
def limits(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect()
    yield EndpointLimits(ledger, LimiterSettings(start_calls=1, max_calls=2))
    ledger.close()


def run(*words):
    return CliRunner().invoke(cli, ["limits", *words])


def test_list_says_who_calls_and_who_waits(limits):
    limits.acquire(NAME, "a")
    limits.acquire(NAME, "b")
    assert (
        run("list").output == f"{NAME}: 1 calls of 1, 1 waiting; 1 so far, 0 refused, 0.0 s each\n"
    )


def test_list_says_who_is_paused(limits):
    limits.acquire(NAME, "a")
    limits.release(NAME, "a", "paused", pause_s=500)
    assert ", paused for " in run("list").output
    state = json.loads(run("list", "--json").output)
    assert (state["name"], state["paused"]) == (NAME, 1)


def test_list_without_calls_says_so(limits):
    assert run("list").output == "no model endpoint was called recently\n"


def test_engines_says_how_much_of_the_cache_is_in_flight(limits, redis_server):
    ledger = Ledger.connect()
    flights = EngineFlights(ledger, EngineSettings(), lease_s=60)
    asks = [InFlight(name, "", 8000) for name in ("a", "b", "c", "d", "e")]
    order = flights.exchange(ENGINE, asking=asks).order
    assert "its cache is not known" in run("engines").output
    flights.report(ENGINE, order, kv_tokens=20_000, level=0.95, memo="{}")
    flights.exchange(ENGINE, asking=asks)
    ledger.close()
    assert run("engines").output == (
        f"{ENGINE}: 4 trajectories in flight with 32,000 tokens, 1 waiting; "
        "95 % of a cache of 20,000 may be used\n"
    )
    assert json.loads(run("engines", "--json").output)["kv_tokens"] == 20_000


def test_engines_without_calls_says_so(limits):
    assert run("engines").output == "no engine with metrics was called recently\n"


def test_forget_ends_a_pause_and_keeps_the_calls_in_flight(limits):
    limits.acquire(NAME, "a")
    limits.acquire(NAME, "b")
    limits.release(NAME, "b", "refused", pause_s=500)
    assert run("forget", NAME).exit_code == 0
    limits.acquire(NAME, "c")
    state = limits.state(NAME)
    assert (state.leased, state.pause_s, state.refused) == (1, 0, 0)


def test_forgetting_what_is_not_known_is_refused(limits):
    result = run("forget", "nothing")
    assert result.exit_code == 1
    assert "no limit 'nothing'" in result.output
