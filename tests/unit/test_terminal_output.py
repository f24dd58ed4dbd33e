"""Nothing that a terminal would obey comes out of a command, whoever chose the names."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from ledger_steps import begin, publish
from records import make_job, make_record

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.lanes import note_lanes, pause_lane
from hermes_queue.models import Failure
from hermes_queue.terminal.output import console
from producers.run.progress import Progress

OBEYED = "\x1b\x07\r\u202e\x9b\x08\x7f"
HOSTILE = "\x1b]0;title\x07\x1b[2J\r\u202e\x9b2J\x08\x7f"


def obeyed(text: str) -> set[str]:
    return set(text) & set(OBEYED)


@pytest.fixture
def hostile_names(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect()
    job = make_job(instance=f"i{HOSTILE}", env=f"env{HOSTILE}")
    ledger.enqueue("run", [job], config={"env": job.env, "model": HOSTILE})
    begin(ledger, job)
    bug = Failure(cause="env_bug", stage="setup", type="EnvBug", message=HOSTILE)
    publish(ledger, make_record(job, None).model_copy(update={"failure": bug}))
    ledger.client.xadd("hq:dead", {"cause": HOSTILE, "reason": HOSTILE, "group_id": HOSTILE})
    ledger.client.xgroup_create("hq:results", f"group{HOSTILE}", id="0")
    ledger.client.hset("hq:consumer-group:x", HOSTILE, HOSTILE)
    note_lanes(ledger, ["train"])
    pause_lane(ledger, "train", HOSTILE)
    ledger.close()


@pytest.mark.parametrize(
    "command",
    [
        "dead list",
        "dead items",
        "groups list",
        "run list",
        "run show run",
        "run failures run",
        "status",
        "top --once",
        "tasks list",
        "lanes show train",
        "shares list --runs",
    ],
)
def test_a_command_prints_nothing_that_a_terminal_obeys(hostile_names, command):
    assert not obeyed(CliRunner().invoke(cli, command.split()).output)


def test_a_dead_letter_is_shown_without_what_a_terminal_obeys(hostile_names):
    for line in CliRunner().invoke(cli, ["dead", "list"]).output.splitlines():
        shown = CliRunner().invoke(cli, ["dead", "show", line.split()[0]])
        assert shown.exit_code == 0
        assert not obeyed(shown.output)


def test_an_error_names_what_is_wrong_without_what_a_terminal_obeys(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    shown = CliRunner().invoke(cli, ["run", "show", f"x{HOSTILE}"])
    assert shown.exit_code != 0
    assert not obeyed(shown.output)


def test_a_producer_says_nothing_that_a_terminal_obeys(capsys):
    Progress().say(HOSTILE)
    assert not obeyed(capsys.readouterr().err)


def test_styles_of_ours_reach_the_terminal():
    stream = io.StringIO()
    console(file=stream, force_terminal=True, color_system="standard").print(
        f"[red]{HOSTILE}[/red]", highlight=False
    )
    assert stream.getvalue().startswith("\x1b[31m")
    assert "\x1b]" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()
