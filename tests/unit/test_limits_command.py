"""`hermes-queue limits` shows what the fleet knows of its endpoints."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.limiter import EndpointLimits
from hermes_queue.settings import LimiterSettings

NAME = "http://127.0.0.1:1/v1|m"


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
