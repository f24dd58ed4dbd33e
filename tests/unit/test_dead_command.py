"""`hermes-queue dead` lists, shows, requeues and purges."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from ledger_steps import begin, publish
from records import make_job, make_record

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.models import Failure


@pytest.fixture
def ledger(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect()
    for run_id in ("a", "b"):
        job = make_job(run_id=run_id)
        ledger.enqueue(run_id, [job], config={"env": "gsm8k"})
        begin(ledger, job)
        record = make_record(job, None)
        bug = Failure(cause="env_bug", stage="setup", type="EnvBug", message="gone")
        publish(ledger, record.model_copy(update={"failure": bug}))
    yield ledger
    ledger.close()


def run(*words: str):
    return CliRunner().invoke(cli, ["dead", *words])


def listed(*flags: str):
    return [json.loads(line) for line in run("list", "--json", *flags).output.splitlines()]


def test_list_shows_what_matches(ledger):
    assert [letter["run_id"] for letter in listed()] == ["a", "b"]
    assert [letter["run_id"] for letter in listed("--run", "b")] == ["b"]
    assert listed("--older-than", "1h") == []
    assert "env_bug" in run("list").output


def test_show_prints_the_evidence_and_names_an_unknown_id(ledger):
    shown = run("show", listed()[0]["id"]).output
    assert "reason: EnvBug: gone" in shown
    assert "job: {" in shown
    missing = run("show", "1-1")
    assert missing.exit_code == 2
    assert "'1-1'" in missing.output


def test_requeue_runs_jobs_again_and_removes_their_letters(ledger):
    result = run("requeue", "--run", "a")
    assert "runs again as a." in result.output
    assert [letter["run_id"] for letter in listed()] == ["b"]
    assert ledger.run_status("a").queued == 1


def test_purge_asks_for_confirmation_unless_yes_is_passed(ledger):
    assert run("purge").exit_code == 1
    assert len(listed()) == 2
    assert "deleted 2" in run("purge", "--yes").output
    assert listed() == []


def test_a_wrong_duration_is_named(ledger):
    wrong = run("list", "--older-than", "soon")
    assert wrong.exit_code == 2
    assert "'soon' is not a duration" in wrong.output


def test_a_letter_without_fields_hides_no_other(ledger):
    ledger.client.xadd("hq:dead", {"foo": "bar", b"\xff": "x", "job": "{}"})
    shown = run("list")
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) == 3
    assert "is no job that can run again" in run("requeue").output
