"""`hermes-queue shares` says who gets how many slots, in words of people."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from click.testing import CliRunner
from ledger_steps import begin
from records import make_job

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.answers import RunPart


@pytest.fixture
def shares(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    return lambda *words: CliRunner().invoke(cli, ["shares", *words])


def test_what_is_set_is_listed_with_its_units(shares):
    shares("set", "run", "r1", "--quota-h", "100", "--window", "12h")
    shares("set", "team", "", "--weight", "3", "--max-running", "200")
    shares("set", "fleet", "--half-life", "1h")
    rows = [line.split(maxsplit=5) for line in shares("list").output.splitlines()]
    assert [row[0] for row in rows] == ["KIND", "fleet", "run", "team"]
    assert [row[1] for row in rows[1:]] == ["-", "r1", "(none)"]
    assert [row[5] for row in rows[1:]] == [
        "half-life 1.0 h",
        "quota 100 h per 12.0 h",
        "weight 3, max-running 200",
    ]


def test_default_takes_one_value_back_and_reset_all(shares):
    shares("set", "lane", "eval", "--reserved", "0.5", "--order", "2")
    said = shares("set", "lane", "eval", "--order", "default", "--json").output
    assert json.loads(said)["set"] == {"reserved": 0.5}
    assert shares("reset", "lane", "eval").output == "lane eval: nothing is set\n"
    assert shares("list").output == "nothing is set, and no lane has been used lately\n"
    again = shares("reset", "lane", "eval")
    assert (again.exit_code, "see `hermes-queue shares list`" in again.output) == (1, True)


def test_runs_are_listed_with_the_team_that_they_belong_to(shares):
    assert shares("list", "--runs").output == "no jobs run or wait\n"
    with closing(Ledger.connect()) as ledger:
        for run_id, team in (("r1", "red"), ("r2", "")):
            jobs = [make_job(run_id, f"i{n}") for n in range(2)]
            ledger.enqueue(run_id, jobs, config={}, part=RunPart(team))
            ledger.published(job.trajectory_id for job in jobs)
        assert begin(ledger, jobs[0]).verdict == "run"
    rows = [line.split() for line in shares("list", "--runs").output.splitlines()]
    assert rows[1:] == [["train", "(none)", "r2", "1", "1"], ["train", "red", "r1", "0", "2"]]
    first = json.loads(shares("list", "--runs", "--json").output.splitlines()[0])
    assert (first["team"], first["running"], first["waiting"]) == ("", 1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("set team --weight 2", 'name the team ("" is that of runs without one)'),
        ("reset env", "name the env"),
        ("set team red", "say what to set"),
        ("set team red --weight 0", "--weight: Input should be greater than or equal to 0.001"),
        ("set team red --reserved 0.1", "reserved cannot be set for a team"),
        ("set run r1 --window 1x", "write 30s, 15m, 12h or 7d"),
        ("set fleet red --half-life 1h", "the fleet has no name"),
    ],
)
def test_what_cannot_be_set_says_what_can(shares, words, said):
    found = shares(*words.split())
    assert (found.exit_code, said in " ".join(found.output.split())) == (2, True), found.output
