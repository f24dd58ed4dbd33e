"""`hermes-queue run` shows runs and changes their state."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from records import make_job

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger


@pytest.fixture
def run(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect()
    ledger.enqueue("r1", [make_job("r1")], config={"env": "gsm8k", "agent": "oracle"})
    ledger.close()
    return lambda *words: CliRunner().invoke(cli, ["run", *words])


def test_list_is_one_line_per_run(run):
    head, line = run("list").output.splitlines()
    assert head.split()[:4] == ["RUN", "STATE", "ENV", "AGENT"]
    assert line.split()[:7] == ["r1", "active", "gsm8k", "oracle", "1", "1", "0"]


def test_list_as_json_is_one_object_per_run(run):
    row = json.loads(run("list", "--json").output)
    assert (row["run_id"], row["state"], row["queued"]) == ("r1", "active", 1)


def test_pause_and_resume_show_in_the_state(run):
    assert run("pause", "r1", "--reason", "lunch").exit_code == 0
    row = json.loads(run("show", "r1", "--json").output)
    assert (row["state"], row["reason"]) == ("paused", "lunch")
    assert "lunch" in run("show", "r1").output
    assert run("resume", "r1").exit_code == 0
    assert json.loads(run("show", "r1", "--json").output)["state"] == "active"


def test_cancel_asks_and_purge_forgets_only_what_has_ended(run):
    refused = run("purge", "r1")
    assert (refused.exit_code, "cancel it first" in refused.output) == (2, True)
    assert run("cancel", "r1").exit_code == 1
    assert "1 trajectories cancelled" in run("cancel", "r1", "--yes").output
    assert run("purge", "r1").exit_code == 0
    assert run("list", "--json").output == ""


@pytest.mark.parametrize("words", ["show", "pause", "resume", "purge", "cancel --yes"])
def test_an_unknown_run_is_an_error(run, words):
    result = run(*words.split(), "r9")
    assert result.exit_code == 2
    assert "'r9' is unknown" in result.output
