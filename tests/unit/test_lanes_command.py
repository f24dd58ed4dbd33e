"""`hermes-queue lanes` says what paused and lets it go on."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hermes_queue.cli import cli
from hermes_queue.ledger import Breakers, Ledger
from hermes_queue.ledger.fleet.lanes import EndedAttempts, Watched
from hermes_queue.models import AgentSpec
from hermes_queue.settings import BreakerSettings


@pytest.fixture
def run(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect()
    breakers = Breakers(ledger, BreakerSettings(min_failures=1))
    breakers.record(Watched("train"), {"sandbox": EndedAttempts(1, "no room")})
    down = Watched.endpoint_of("eval", AgentSpec(model="m", base_url="http://down/v1"))
    breakers.record(down, {"model": EndedAttempts(1, "500")})
    ledger.close()
    return lambda *words: CliRunner().invoke(cli, ["lanes", *words])


def test_show_says_which_lane_is_paused_and_why(run):
    result = run("show", "train", "eval")
    assert result.output.splitlines() == [
        "train: paused (sandbox): 1 of 1 attempts failed: no room",
        "eval: working",
        "eval: jobs that call m at http://down/v1 wait (model): 1 of 1 attempts failed: 500",
    ]


def test_show_as_json_is_one_object_per_lane(run):
    state = json.loads(run("show", "train", "--json").output)
    assert (state["lane"], state["state"], state["cause"]) == ("train", "open", "sandbox")


def test_resume_closes_the_breaker_once(run):
    assert run("resume", "train").exit_code == 0
    again = run("resume", "train")
    assert again.exit_code == 1
    assert "'train' is not paused" in again.output
