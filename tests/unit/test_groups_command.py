"""`hermes-queue groups` shows who reads the results and removes readers."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest
from click.testing import CliRunner
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

import hermes_queue
from hermes_queue.cli import cli
from hermes_queue.cli.exporter import Exporter
from hermes_queue.ledger import Ledger
from hermes_queue.telemetry import metrics


@pytest.fixture
def run(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect()
    jobs = [make_job(instance=f"i{n}") for n in range(20)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish(ledger, make_record(job))
    ledger.close()

    async def read() -> None:
        async for group in hermes_queue.consume("viewer", run="run", durable=False):
            await group.ack()
            return

    asyncio.run(read())
    return lambda *words: CliRunner().invoke(cli, ["groups", *words])


def test_list_shows_what_a_group_has_not_acknowledged_and_not_read(run):
    group = json.loads(run("list", "--json").output)
    assert (group["name"], group["durable"], group["filter"]) == (
        "viewer",
        False,
        {"run_id": "run"},
    )
    assert (group["consumers"], group["pending"], group["behind"]) == (1, 15, 4)
    assert run("list").output.splitlines()[1].split()[:5] == ["viewer", "no", "1", "15", "4"]


def test_what_was_trimmed_unread_counts_neither_here_nor_in_the_lag_that_readers_ask_for(run):
    """Redis 7 goes on counting it in what it calls the group's lag."""
    with closing(Ledger.connect()) as ledger:
        newest = [entry for entry, _ in ledger.client.xrevrange("hq:results", count=2)]
        ledger.client.xtrim("hq:results", minid=newest[-1], approximate=False)
        exported = dict(Exporter(ledger, lanes=[], scan_s=60).values())
    lag = asyncio.run(hermes_queue.consumer_lag("viewer"))
    assert (lag.behind, json.loads(run("list", "--json").output)["behind"]) == (2, 2)
    assert exported[metrics.CONSUMER_BEHIND] == {("viewer",): 2}


def test_remove_removes_and_names_what_is_not_there(run):
    assert run("remove", "viewer", "--yes").exit_code == 0
    again = run("remove", "viewer", "--yes")
    assert again.exit_code == 2
    assert "'viewer'" in again.output


def test_rewind_lets_a_group_read_again_and_names_what_it_cannot_do(run):
    assert run("rewind", "viewer", "--to", "0").exit_code == 0
    assert json.loads(run("list", "--json").output)["behind"] == 20
    missing = run("rewind", "nobody", "--to", "0")
    assert (missing.exit_code, "no consumer group 'nobody'" in missing.output) == (2, True)
    assert run("rewind", "viewer", "--to", "tomorrow").exit_code == 2
