"""`hermes-queue sink`: what is in the stream is in the dataset, whatever is killed when."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from ports import free_port
from records import make_job, make_record
from scrape import scrape, value
from sink_process import SinkProcess, run_sink
from small_files import ONLY_SMALL_FILES
from worker_process import wait_until

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger

pytestmark = pytest.mark.xdist_group("sinks")
"""One process imports pyarrow, and forks sinks and Atropos servers."""

OUT = {
    "jsonl": "o.jsonl",
    "parquet": "o",
    "sharegpt": "s.jsonl",
}


def publish(ledger: Ledger, instances: range, *, size: int = 2, score: float | None = 1.0):
    """Groups of the run; returns the trajectory ids."""
    jobs = [make_job("run", f"i{n}", i, size) for n in instances for i in range(size)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish_record(ledger, make_record(job, score))
    return [job.trajectory_id for job in jobs]


def ids(kind: str, out: Path) -> list[str]:
    """Trajectory ids in the dataset, in order, repetitions included."""
    if kind == "parquet":
        return pq.read_table(out).column("trajectory_id").to_pylist()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return [row["trajectory_id"] for row in rows]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("jsonl", "parquet") else pytest.mark.fleet)
        for kind in OUT
    ],
)
def test_a_sink_writes_every_trajectory_of_the_run_and_ends_when_it_is_done(kind, ledger, tmp_path):
    published = publish(ledger, range(3))
    out = tmp_path / OUT[kind]
    done = run_sink(ledger, "sink", kind, "--out", out, "--run", "run", "--until-done", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 6
    assert sorted(ids(kind, out)) == sorted(published)


def test_a_running_sink_serves_its_metrics(ledger, tmp_path):
    publish(ledger, range(3))
    port = free_port()
    flags = ("sink", "jsonl", "--out", tmp_path / "o.jsonl", "--quiet")
    page = f"http://127.0.0.1:{port}/metrics"
    with SinkProcess(ledger, *flags, HERMES_QUEUE_METRICS_SINK_PORT=str(port)) as sink:
        wait_until("it has stored all", lambda: stored(page) == {"groups": 3, "trajectories": 6})
        sink.send_signal(signal.SIGTERM)
        assert sink.wait(30) == 0


def stored(page: str) -> dict[str, float | None]:
    try:
        series = scrape(page)
    except OSError:  # it does not serve yet
        return {}
    names = ("groups", "trajectories")
    return {name: value(series, f"sink_{name}_total", sink="jsonl") for name in names}


# --- what is killed -----------------------------------------------------------------------

DIES = """
import os, signal
from pyarrow.parquet import ParquetWriter
from hermes_queue.results.reader import StreamReader
from hermes_queue.disk.frames import FrameLog
def die(*_a, **_k): os.kill(os.getpid(), signal.SIGKILL)
places = {
    "in the middle of a shard": (ParquetWriter, "write_table"),
    "before the shard has its name": (os, "rename"),
    "before the journal is emptied": (FrameLog, "clear"),
    "before anything is acknowledged": (StreamReader, "_ack"),
}
place, calls = places[PLACE], 2
real = getattr(*place)
def counted(*a, **k):
    global calls
    calls -= 1
    return die() if calls < 0 else real(*a, **k)
setattr(*place, counted)
"""

PLACES = (
    "in the middle of a shard",
    "before the shard has its name",
    "before the journal is emptied",
    "before anything is acknowledged",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_parquet_sink_killed_and_started_again_has_each_row_once(place, ledger, tmp_path):
    published = publish(ledger, range(40), size=1)
    out = tmp_path / "o"
    flags = ["sink", "parquet", "--out", out, "--run", "run", "--until-done", "--shard-rows", "5"]
    killed = run_sink(ledger, *flags, before=f"PLACE = {place!r}\n{DIES}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_sink(ledger, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(ids("parquet", out)) == sorted(published)
    assert [p.name for p in out.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("kind", ["parquet", "sharegpt"])
def test_a_sink_killed_at_any_moment_of_a_run_has_each_row_once(kind, ledger, tmp_path):
    out = tmp_path / OUT[kind]
    flags = ["sink", kind, "--out", out, "--run", "run"]
    flags += ["--shard-rows", 4] if kind == "parquet" else []
    published = []
    for life in range(2):
        with SinkProcess(ledger, *flags):
            published += publish(ledger, range(8 * life, 8 * life + 8))
            wait_until("it reads", lambda: ledger.client.xinfo_groups("hq:results"))
            before = ledger.client.xinfo_groups("hq:results")[0]["last-delivered-id"]
            published += publish(ledger, range(100 + 8 * life, 108 + 8 * life))
            wait_until(
                "it goes on",
                lambda seen=before: (
                    ledger.client.xinfo_groups("hq:results")[0]["last-delivered-id"] != seen
                ),
            )
    done = run_sink(ledger, *flags, "--until-done")
    assert done.returncode == 0, done.stderr
    assert sorted(ids(kind, out)) == sorted(published)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_ends_a_sink_in_good_order(name, code, ledger, tmp_path):
    publish(ledger, range(2))
    out = tmp_path / "o"
    with SinkProcess(ledger, "sink", "parquet", "--out", out) as sink:
        wait_until("both are acknowledged", lambda: acknowledged(ledger, 2))
        sink.send_signal(getattr(signal, name))
        assert sink.wait(30) == code, sink.printed()
    assert len(ids("parquet", out)) == 4


def acknowledged(ledger: Ledger, count: int) -> bool:
    groups = ledger.client.xinfo_groups("hq:results")
    return bool(
        groups
        and len(ledger.client.xrange("hq:results", max=groups[0]["last-delivered-id"])) == count
        and not groups[0]["pending"]
    )


# --- several at once, and what goes wrong ---------------------------------------------------


@pytest.mark.fleet
def test_a_sink_that_stands_still_keeps_nothing_from_another(ledger, tmp_path):
    first = publish(ledger, range(2))
    flags = ["--run", "run", "--until-done"]
    with SinkProcess(ledger, "sink", "jsonl", "--out", tmp_path / "slow.jsonl") as slow:
        wait_until("it has begun", lambda: acknowledged(ledger, 2))
        slow.send_signal(signal.SIGSTOP)
        published = first + publish(ledger, range(2, 12))
        for kind in ("sharegpt", "jsonl"):
            out = tmp_path / kind / OUT[kind]
            done = run_sink(ledger, "sink", kind, "--out", out, *flags)
            assert done.returncode == 0, done.stderr
            assert sorted(ids(kind, out)) == sorted(published)
        slow.send_signal(signal.SIGCONT)
        out = tmp_path / "slow.jsonl"
        wait_until("it has caught up", lambda: out.read_bytes().count(b"\n") == len(published))
        assert sorted(ids("jsonl", out)) == sorted(published)


@pytest.mark.fleet
@pytest.mark.parametrize("kind", ["parquet", "sharegpt"])
def test_a_sink_whose_disk_was_full_has_every_row_once_there_is_room(kind, ledger, tmp_path):
    published = publish(ledger, range(40))
    out = tmp_path / OUT[kind]
    flags = ["sink", kind, "--out", out, "--run", "run", "--until-done"]
    full = run_sink(ledger, *flags, before=ONLY_SMALL_FILES.format(9000))
    assert full.returncode == 1, full.stderr
    assert "error:" in full.stderr
    assert "cannot" in full.stderr
    done = run_sink(ledger, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(ids(kind, out)) == sorted(published)


def test_a_record_of_a_newer_schema_ends_a_sink_and_is_kept(ledger, tmp_path):
    publish(ledger, range(1))
    [(_, fields)] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", {**fields, b"schema": b"9"})
    done = run_sink(ledger, "sink", "jsonl", "--out", tmp_path / "o.jsonl", "--idle-timeout", 20)
    assert done.returncode == 1
    assert "upgrade hermes-queue" in done.stderr
    assert len(ids("jsonl", tmp_path / "o.jsonl")) in (0, 2)
    assert ledger.client.xinfo_groups("hq:results")[0]["pending"] >= 1


@pytest.mark.fleet
def test_an_out_that_was_removed_is_begun_anew(ledger, tmp_path):
    published = publish(ledger, range(2))
    folder = tmp_path / "data"
    flags = ["sink", "jsonl", "--out", folder / "o.jsonl", "--run", "run", "--until-done"]
    run_sink(ledger, *flags)
    folder.rename(tmp_path / "moved")
    assert run_sink(ledger, *flags).returncode == 0
    assert sorted(ids("jsonl", folder / "o.jsonl")) == sorted(published)


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        (["parquet", "--out", "file"], 2, "is a file"),
        (["jsonl", "--out", "file/x.jsonl"], 2, "cannot be written"),
        (["sharegpt", "--out", "rows.txt"], 2, "ending in .jsonl"),
        (["jsonl", "--out", "o.jsonl", "--until-done"], 2, "--until-done needs --run"),
        (["jsonl", "--out", "o.jsonl", "--start", "yesterday"], 2, "start 'yesterday'"),
        (["jsonl", "--out", "o.jsonl", "--exclude", "missing"], 2, "cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_said_before_anything_is_read(
    flags, code, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["sink", *flags])
    assert done.exit_code == code, done.output
    assert expected in done.output
