"""`hermes-queue sink` in each of the formats: what is in the stream is in the dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record
from sink_process import run_sink

pytestmark = [pytest.mark.xdist_group("sinks"), pytest.mark.fleet]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("openai", "c.jsonl"),
        ("tokens", "t.jsonl"),
        ("swe_smith", "x.jsonl"),
        ("hf", "h"),
    ],
)
def test_a_sink_writes_every_trajectory_of_the_run_and_ends_when_it_is_done(
    kind, name, ledger, tmp_path
):
    jobs = [make_job("run", f"i{n}", i, 2) for n in range(3) for i in range(2)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish(ledger, make_record(job, 1.0))
    out = tmp_path / name
    done = run_sink(ledger, "sink", kind, "--out", out, "--run", "run", "--until-done", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 6
    found = ids(kind, out)
    assert len(found) == 6
    assert kind == "openai" or sorted(found) == sorted(job.trajectory_id for job in jobs)


def ids(kind: str, out: Path) -> list[str]:
    """Trajectory ids in the dataset, repetitions included; "?" where a row has none."""
    if kind == "hf":
        return pq.read_table(out / "data").column("trajectory_id").to_pylist()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    name = "traj_id" if kind == "swe_smith" else "trajectory_id"
    return [row.get(name, "?") for row in rows]
