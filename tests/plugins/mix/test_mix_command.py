"""`hermes-queue mix ...` as people run it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from mixes import jobs_in, write_mix
from worker_process import WorkerProcess, wait_until
from zygote import run_forked, start_forked

import hermes_queue
from hermes_queue.cli import cli

IMPORTED = ("hermes_plugins.mix.command", "hermes_plugins.mix.run", "envs.gsm8k")
MARKS = "backlog = { low = 4, high = 12 }"


@pytest.fixture
def environment(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    return {**os.environ, "HERMES_QUEUE_REDIS_URL": redis_server.url}


@contextmanager
def started(environment, *words):
    process = start_forked("hermes_queue.cli", "mix", *words, environment=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def ran(environment, *words):
    return run_forked("hermes_queue.cli", "mix", *words, environment=environment)


def typed(*words) -> str:
    done = CliRunner().invoke(cli, ["mix", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_sigterm_ends_a_mix_and_the_next_start_goes_on(ledger, environment, tmp_path):
    file = write_mix(tmp_path, {"a": "", "b": ""}, head=MARKS)
    with started(environment, file) as process:
        wait_until("full", lambda: ledger.run_status("m").queued == 12)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "ended, it was stopped (SIGTERM); 12 jobs enqueued" in process.communicate()[1]
    typed("set", "m", "low=12", "high=20", "b.pause=true")
    with started(environment, file) as process:
        wait_until("more", lambda: ledger.run_status("m").queued == 20)
        shown = json.loads(typed("show", "m", "--json"))
        assert shown["served_by"]["pid"] == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    counts = {name: each["items"] for name, each in shown["sources"].items()}
    assert counts == {"a": 14, "b": 6}
    assert len(jobs_in(ledger)) == 20
    page = typed("show", "m")
    assert "m: served by nobody (it was stopped (SIGINT))" in page
    assert "paused" in page
    assert typed("show").splitlines()[1].startswith("m ")


def test_a_second_start_says_who_serves_the_mix(ledger, environment, tmp_path):
    file = write_mix(tmp_path, {"a": ""}, head=MARKS)
    with started(environment, file) as process:
        wait_until("full", lambda: ledger.run_status("m").queued == 12)
        second = ran(environment, file)
        assert second.returncode == 2
        assert f"mix 'm' is served by process {process.pid} on " in second.stderr
        assert ledger.run_status("m").total == 12


def test_a_file_is_checked_without_redis(tmp_path, monkeypatch):
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    file = write_mix(tmp_path, {"a": "weight = 3", "b": ""})
    environment = {k: v for k, v in os.environ.items() if k != "HERMES_QUEUE_REDIS_URL"}
    done = ran(environment, "check", file, "--json")
    assert done.returncode == 0, done.stderr
    sources = json.loads(done.stdout)["sources"]
    assert [(each["source"], each["rows"], each["share"]) for each in sources] == [
        ("a", 10, 0.75),
        ("b", 10, 0.25),
    ]
    served = ran(environment, file)
    assert served.returncode == 2
    assert "set HERMES_QUEUE_REDIS_URL" in served.stderr


def test_a_wrong_file_ends_with_two_and_the_field(environment, tmp_path):
    file = write_mix(tmp_path, {"a": "wieght = 3"})
    done = ran(environment, file)
    assert (done.returncode, done.stdout) == (2, "")
    assert "sources.a.wieght: is no setting here" in done.stderr


def test_a_redis_that_is_away_at_the_start_is_an_error(environment, tmp_path):
    file = write_mix(tmp_path, {"a": ""})
    away = environment | {"HERMES_QUEUE_REDIS_URL": f"unix://{tmp_path}/none.sock"}
    done = ran(away, file)
    assert done.returncode == 4
    assert "cannot be reached" in done.stderr


@pytest.mark.parametrize("words", [["show", "x"], ["set", "x", "low=1"], ["forget", "x"]])
def test_a_mix_that_is_unknown_is_named(environment, words):
    done = CliRunner().invoke(cli, ["mix", *words])
    assert done.exit_code == 2
    assert "mix 'x' is unknown" in done.output


def test_what_is_no_mix_in_redis_breaks_no_list(ledger, environment):
    ledger.client.zadd("hq:mixes", {"m": 1})
    junk = {"fence": "1", "sources": '{"a": 3, "b": {}}', "state": "[", "until": "x", "owner": "o"}
    ledger.client.hset("hq:mix:m", mapping=junk)
    assert typed("show").splitlines()[1].split()[0] == "m"
    assert "its sources have not been read yet" in typed("show", "m")
    until = ledger.client.time()[0] + 5
    facts = json.dumps({"host": "h\x1b[2J" * 1000, "pid": "\x1b", "since": -1})
    ledger.client.hset("hq:mix:m", mapping={"until": until, "facts": facts, "ended": "\x1b[2J"})
    ledger.client.hset("hq:mix:m:live", "\x1b[2J", "\x1b")
    assert "\x1b" not in typed("show", "m") + typed("show")


@pytest.mark.fleet
async def test_workers_finish_a_mix_while_it_is_served(ledger, environment, redis_server, tmp_path):
    sources = {"a": "epochs = 2\nweight = 2", "b": "epochs = 1\nsampler = 'in_order'"}
    file = write_mix(tmp_path, sources, head=MARKS)
    file.write_text(file.read_text().replace('"nop"', '"oracle"\ngroup_size = 2'))
    worker = WorkerProcess(redis_server.url, tmp_path / "workers", concurrency=4).start()
    try:
        with started(environment, file) as process:
            assert process.wait(120) == 0
        wait_until("done", lambda: ledger.run_status("m").done)
    finally:
        worker.close()
    scores, groups = [], set()
    async for group in hermes_queue.consume("t", url=redis_server.url, run="m", idle_timeout_s=1):
        scores += [member.score for member in group.members]
        groups.add(group.group_id)
        await group.ack()
    assert scores == [1.0] * 60
    assert len(groups) == 30


def test_sigterm_ends_a_mix_that_reads_its_rows(ledger, environment, tmp_path):
    file = write_mix(tmp_path, {"a": ""}, head=MARKS)
    (tmp_path / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "a.jsonl")
    with started(environment, file) as process:
        wait_until("reading", lambda: ledger.client.hexists("hq:mix:m", "owner"))
        with (tmp_path / "a.jsonl").open("w"):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert not ledger.client.hexists("hq:mix:m", "owner")
