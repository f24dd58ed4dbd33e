"""`hermes-queue run` shows runs and changes their state."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from click.testing import CliRunner
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.answers import RunPart
from hermes_queue.models import GroupPolicy


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


def test_show_has_the_part_of_the_slots_and_each_counter_once(run):
    with closing(Ledger.connect()) as ledger:
        ledger.enqueue("r2", [make_job("r2")], config={}, part=RunPart("red", 2.0, 8))
    rows = [line.split() for line in run("show", "r2").output.splitlines()]
    facts = dict(row for row in rows if len(row) == 2)
    assert (facts["team"], facts["weight"], facts["max_running"]) == ("red", "2.0", "8")
    assert [row[0] for row in rows].count("total") == 1
    assert not any(row[0] == "counters" for row in rows)


def test_cancel_asks_and_purge_forgets_only_what_has_ended(run):
    refused = run("purge", "r1")
    assert (refused.exit_code, "cancel it first" in refused.output) == (2, True)
    assert run("cancel", "r1").exit_code == 1
    assert "1 trajectories cancelled" in run("cancel", "r1", "--yes").output
    assert run("purge", "r1").exit_code == 0
    assert run("list", "--json").output == ""


@pytest.mark.parametrize("words", ["show", "pause", "resume", "purge", "cancel --yes", "drift"])
def test_an_unknown_run_is_an_error(run, words):
    result = run(*words.split(), "r9")
    assert result.exit_code == 2
    assert "'r9' is unknown" in result.output


def test_cancel_ends_single_trajectories_and_says_of_each_what_it_was(run):
    name = make_job("r1").trajectory_id
    assert run("cancel", "--trajectory", name).exit_code == 1
    result = run("cancel", "--trajectory", name, "--reason", "wrong row", "--yes")
    assert (result.exit_code, f"{name}: waiting; the next worker" in result.output) == (0, True)
    group = run("cancel", "r1", "--group", name.rpartition(".")[0], "--yes")
    assert (group.exit_code, f"{name}: waiting" in group.output) == (0, True)
    assert json.loads(run("show", "r1", "--json").output)["queued"] == 1
    with closing(Ledger.connect()) as ledger:
        [due] = ledger.due()[1]
    assert (due.cancel, due.task_id) == (True, f"{name}.1.cancel")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cancel --yes", "say what to cancel"),
        ("cancel r1 --trajectory r2.a.0 --yes", "r2.a.0 does not belong to r1"),
        ("cancel --trajectory r2.a.0 --yes", "r2.a.0: unknown"),
        ("cancel --group r1.nothing --yes", "r1.nothing: unknown"),
    ],
)
def test_cancel_refuses_what_it_cannot_find(run, words, expected):
    result = run(*words.split())
    assert (result.exit_code, expected in result.output) == (2, True)


def fail(redis_server, cause="sandbox", kind="SandboxError"):
    ledger = Ledger.connect()
    job = make_job("r1")
    epoch = ledger.begin(job.trajectory_id, 1, owner="w1", lease_s=30, nonce="n").epoch
    record = make_record(job, None, epoch=epoch)
    failure = record.failure.model_copy(update={"cause": cause, "kind": cause, "type": kind})
    record = record.model_copy(update={"failure": failure})
    ledger.publish(record, codec.encode_record(record), owner="w1", finished_ttl_s=60)
    ledger.close()
    return job


@pytest.mark.parametrize("cause", ["sandbox", "env_bug"])
def test_retry_runs_what_failed_again_as_a_group_that_names_it(run, redis_server, cause):
    job = fail(redis_server, cause)
    result = run("retry", "r1")
    assert (result.exit_code, "1 trajectories run again" in result.output) == (0, True)
    with closing(Ledger.connect()) as ledger:
        (due,) = [i for i in ledger.client.zrange("hq:waiting", 0, -1) if i != job.trajectory_id]
        again = codec.decode_job(ledger.client.hget(b"hq:traj:" + due, "job"), due.decode())
    assert again.requeued_from == job.trajectory_id
    assert "0 trajectories" in run("retry", "r1").output


def test_retry_of_whole_groups_names_the_old_and_the_new_one(run, redis_server):
    job = fail(redis_server)
    result = run("retry", "r1", "--groups")
    assert f"{job.group_id}: failed (sandbox), runs again as r1." in result.output
    assert "r1: 1 groups run again" in result.output
    assert "r1: 0 groups" in run("retry", "r1", "--groups").output


def test_retry_of_one_cause_leaves_the_others(run, redis_server):
    fail(redis_server, "sandbox")
    assert "0 trajectories" in run("retry", "r1", "--cause", "model").output
    assert "1 trajectories" in run("retry", "r1", "--cause", "sandbox").output


def test_budget_is_set_shown_and_taken_away(run):
    assert run("budget", "r1", "--tokens", "1000", "--wall", "3600").exit_code == 0
    assert "0 of 1000 (0 %)" in run("show", "r1").output
    assert run("budget", "r1", "--tokens", "none").exit_code == 0
    accounts = json.loads(run("show", "r1", "--json").output)["accounts"]
    assert (accounts["tokens"]["limit"], accounts["wall_s"]["limit"]) == (None, 3600)


@pytest.mark.parametrize("words", [(), ("--tokens", "-1"), ("--cost", "much")])
def test_a_budget_that_is_no_amount_is_a_usage_error(run, words):
    assert run("budget", "r1", *words).exit_code == 2


def test_policy_sets_the_version_of_a_run_and_shows_it(run):
    assert run("policy", "r1").output == "r1: no policy version\n"
    assert "policy_version" not in run("show", "r1").output
    assert run("policy", "r1", "--version", "12").output == "r1: policy version 12\n"
    assert json.loads(run("show", "r1", "--json").output)["policy_version"] == 12
    refused = run("policy", "r1", "--version", "11")
    assert (refused.exit_code, "newer than 11" in refused.output) == (2, True)
    assert run("policy", "r1", "--version", "11", "--force").output == "r1: policy version 11\n"


def test_show_counts_what_was_too_old(run, redis_server):
    run("policy", "r1", "--version", "5")
    policy = GroupPolicy(max_policy_lag=1, on_stale="drop")
    job = make_job("r1", "old", group_policy=policy)
    with closing(Ledger.connect()) as ledger:
        ledger.enqueue("r1", [job], config=None)
        ledger.begin(job.trajectory_id, 1, owner="w", lease_s=30, nonce="n")
        record = make_record(job, policy="3")
        ledger.publish(record, codec.encode_record(record), owner="w", finished_ttl_s=60)
    row = json.loads(run("show", "r1", "--json").output)
    assert (row["stale"], row["dropped"], row["finished"], row["total"]) == (1, 1, 0, 2)
    assert "stale" in run("show", "r1").output


def test_pace_holds_a_run_back_and_shows_how_far_it_is_ahead(run):
    assert "not paced" in run("pace", "r1").output
    assert "0 of 1 groups ahead of the trainer\n" in run("pace", "r1", "--max-ahead", "1").output
    with closing(Ledger.connect()) as ledger:
        ledger.enqueue("r1", [make_job("r1", "another")], config=None)
        for instance in ("i", "another"):
            job = make_job("r1", instance).trajectory_id
            ledger.begin(job, 1, owner="w", lease_s=9, nonce=instance)
    assert "1 of 1 groups ahead of the trainer; 1 jobs wait since 0 s" in run("show", "r1").output
    pace = json.loads(run("show", "r1", "--json").output)["pace"]
    assert (pace["max_ahead"], pace["ahead"], pace["held"]) == (1, 1, 1)
    assert "r1: not paced" in run("pace", "r1", "--off").output
    assert json.loads(run("show", "r1", "--json").output)["pace"] is None


@pytest.mark.parametrize("words", [["--max-ahead", "0"], ["--max-ahead", "1", "--off"]])
def test_a_pace_that_makes_no_sense_is_refused(run, words):
    assert run("pace", "r1", *words).exit_code == 2
