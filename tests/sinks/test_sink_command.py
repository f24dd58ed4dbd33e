"""`hermes-queue sink`: what is in the stream is in the dataset, whatever is killed when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from redis_server import RedisServer
from worker_process import wait_until

from hermes_queue.ledger import Ledger

OUT = {"jsonl": "o.jsonl", "parquet": "o", "sharegpt": "s.jsonl", "openai": "c.jsonl", "hf": "h"}


@pytest.fixture
def ledger(redis_server: RedisServer) -> Iterator[Ledger]:
    with redis_server.client(decode_responses=False) as client:
        yield Ledger(client, prefix="hq:", url=redis_server.url)


def publish(ledger: Ledger, instances: range, *, size: int = 2, score: float | None = 1.0):
    """Groups of the run; returns the trajectory ids."""
    jobs = [make_job("run", f"i{n}", i, size) for n in instances for i in range(size)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish_record(ledger, make_record(job, score))
    return [job.trajectory_id for job in jobs]


def command(*arguments: object) -> list[str]:
    code = "from hermes_queue.cli import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(ledger: Ledger, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url}
    return subprocess.run(
        command(*arguments), env=env, capture_output=True, text=True, timeout=90, **options
    )


def ids(kind: str, out: Path) -> list[str]:
    """Trajectory ids in the dataset, in order, repetitions included."""
    if kind == "parquet":
        return pq.read_table(out).column("trajectory_id").to_pylist()
    if kind == "hf":
        return pq.read_table(out / "data").column("trajectory_id").to_pylist()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return [row["trajectory_id"] for row in rows] if kind != "openai" else ["?"] * len(rows)


@pytest.mark.parametrize("kind", OUT)
def test_a_sink_writes_every_trajectory_of_the_run_and_ends_when_it_is_done(kind, ledger, tmp_path):
    published = publish(ledger, range(3))
    out = tmp_path / OUT[kind]
    done = run(ledger, "sink", kind, "--out", out, "--run", "run", "--until-done", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 6
    found = ids(kind, out)
    assert len(found) == 6
    assert kind == "openai" or sorted(found) == sorted(published)


# --- what is killed -----------------------------------------------------------------------

DIES = """
import os, signal, sys
from pyarrow.parquet import ParquetWriter
from hermes_queue.reader import StreamReader
from hermes_queue.sinks.frames import FrameLog
def die(*_a, **_k): os.kill(os.getpid(), signal.SIGKILL)
places = {
    "in the middle of a shard": (ParquetWriter, "write_table"),
    "before the shard has its name": (os, "rename"),
    "before the journal is emptied": (FrameLog, "clear"),
    "before anything is acknowledged": (StreamReader, "_ack"),
}
place, calls = places[sys.argv.pop(1)], int(sys.argv.pop(1))
real = getattr(*place)
def counted(*a, **k):
    global calls
    calls -= 1
    return die() if calls < 0 else real(*a, **k)
setattr(*place, counted)
from hermes_queue.cli import main
main()
"""

PLACES = (
    "in the middle of a shard",
    "before the shard has its name",
    "before the journal is emptied",
    "before anything is acknowledged",
)


@pytest.mark.parametrize("calls", [2])
@pytest.mark.parametrize("place", PLACES)
def test_a_parquet_sink_killed_and_started_again_has_each_row_once(place, calls, ledger, tmp_path):
    published = publish(ledger, range(40), size=1)
    out = tmp_path / "o"
    flags = ["sink", "parquet", "--out", out, "--run", "run", "--until-done", "--shard-rows", "5"]
    env = {**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url}
    killed = subprocess.run(
        [sys.executable, "-c", DIES, place, str(calls), *map(str, flags)],
        env=env,
        timeout=60,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(ledger, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(ids("parquet", out)) == sorted(published)
    assert [p.name for p in out.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "sharegpt"])
def test_a_sink_killed_at_any_moment_of_a_run_has_each_row_once(kind, ledger, tmp_path):
    out = tmp_path / OUT[kind]
    flags = ["sink", kind, "--out", out, "--run", "run", "--idle-timeout", "3"]
    flags += ["--shard-rows", 4] if kind == "parquet" else []
    env = {**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url}
    published = []
    for life in range(3):
        process = subprocess.Popen(command(*flags), env=env, stderr=subprocess.DEVNULL)
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
        process.kill()
        process.wait()
    done = run(ledger, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(ids(kind, out)) == sorted(published)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_ends_a_sink_in_good_order(name, code, ledger, tmp_path):
    publish(ledger, range(2))
    out = tmp_path / "o"
    env = {**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url}
    process = subprocess.Popen(
        command("sink", "parquet", "--out", out), env=env, stderr=subprocess.PIPE, text=True
    )
    wait_until("both are acknowledged", lambda: acknowledged(ledger, 2))
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert len(ids("parquet", out)) == 4


def acknowledged(ledger: Ledger, count: int) -> bool:
    groups = ledger.client.xinfo_groups("hq:results")
    return bool(
        groups
        and len(ledger.client.xrange("hq:results", max=groups[0]["last-delivered-id"])) == count
        and not groups[0]["pending"]
    )
