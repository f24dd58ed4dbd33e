"""Sinks of datasets that are started again and again, share a name, or meet rows that kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from sink_process import run_sink
from small_files import ONLY_SMALL_FILES

from hermes_queue.ledger import Ledger

pytestmark = pytest.mark.xdist_group("sinks")
"""One process imports pyarrow, and forks sinks and Atropos servers."""


def publish(ledger: Ledger, *instances: str) -> list[str]:
    """A group of one for each instance; returns the trajectory ids."""
    jobs = [make_job("run", instance, 0, 1) for instance in instances]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish_record(ledger, make_record(job, 1.0))
    return [job.trajectory_id for job in jobs]


def ids(out: Path) -> list[str]:
    return [json.loads(line)["trajectory_id"] for line in out.read_text().splitlines()]


def pending(ledger: Ledger) -> list[dict]:
    [group] = ledger.client.xinfo_groups("hq:results")
    return ledger.client.xpending_range("hq:results", group["name"], "-", "+", 100)


def test_a_full_disk_uses_up_no_delivery(ledger, tmp_path):
    published = publish(ledger, *(f"i{n}" for n in range(20)))
    out = tmp_path / "s.jsonl"
    flags = ["sink", "sharegpt", "--out", out, "--run", "run", "--until-done", "--quiet"]
    for _ in range(2):
        full = run_sink(ledger, *flags, before=ONLY_SMALL_FILES.format(900))
        assert full.returncode == 1, full.stderr
        assert {entry["times_delivered"] for entry in pending(ledger)} == {0}
    done = run_sink(ledger, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(ids(out)) == sorted(published)


DIES_BEFORE_IT_WRITES = """
import os, signal
from hermes_queue.sinks.datasets.lines import LinesSink
LinesSink.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_sink_killed_many_times_over_the_same_groups_loses_none(ledger, tmp_path):
    published = publish(ledger, *(f"i{n}" for n in range(20)))
    out = tmp_path / "s.jsonl"
    flags = ["sink", "sharegpt", "--out", out, "--run", "run", "--until-done", "--quiet"]
    killed = run_sink(ledger, *flags, before=DIES_BEFORE_IT_WRITES)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for entry in pending(ledger):  # as 19 more such lives leave it
        group = ledger.client.xinfo_groups("hq:results")[0]["name"]
        ledger.client.xclaim(
            "hq:results", group, "sink", 0, [entry["message_id"]], retrycount=20, justid=True
        )
    done = run_sink(ledger, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(ids(out)) == sorted(published)


FAILS_ON_ONE = """
from hermes_queue.sinks.datasets import sharegpt
real = sharegpt.row
def row(trajectory, *rest):
    if trajectory.instance_id == "bad":
        raise RuntimeError("a defect of this format")
    return real(trajectory, *rest)
sharegpt.row = row
"""


def test_a_row_that_cannot_be_made_is_put_aside_and_its_neighbours_are_written(ledger, tmp_path):
    good = publish(ledger, "a", "b")
    publish(ledger, "bad")
    good += publish(ledger, "y", "z")
    out = tmp_path / "s.jsonl"
    flags = ["sink", "sharegpt", "--out", out, "--run", "run", "--until-done"]
    done = run_sink(ledger, *flags, before=FAILS_ON_ONE)
    assert done.returncode == 0, done.stderr
    assert sorted(ids(out)) == sorted(good)
    [(_, letter)] = ledger.client.xrange("hq:dead")
    assert letter[b"instance_id"] == b"bad"
    assert b"a defect of this format" in letter[b"reason"]


def test_export_names_a_row_that_cannot_be_made_and_writes_its_neighbours(ledger, tmp_path):
    good = publish(ledger, "a")
    publish(ledger, "bad")
    good += publish(ledger, "z")
    out = tmp_path / "s.jsonl"
    done = run_sink(ledger, "export", "--format", "sharegpt", "--out", out, before=FAILS_ON_ONE)
    assert done.returncode == 1
    assert sorted(ids(out)) == sorted(good)
    assert "it cannot become rows" in done.stderr
    assert "a defect of this format" in done.stderr


def test_two_datasets_do_not_share_the_groups_of_one_name(ledger, tmp_path):
    published = publish(ledger, "a", "b")
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    flags = ["--group", "mine", "--idle-timeout", "1", "--quiet"]
    assert run_sink(ledger, "sink", "jsonl", "--out", first, *flags).returncode == 0
    done = run_sink(ledger, "sink", "jsonl", "--out", second, *flags)
    assert done.returncode == 2, done.stderr
    assert "groups remove mine" in done.stderr
    assert sorted(ids(first)) == sorted(published)
    assert run_sink(ledger, "sink", "jsonl", "--out", first, *flags).returncode == 0
