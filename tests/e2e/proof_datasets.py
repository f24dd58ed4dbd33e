"""`make datasets`: Parquet and ShareGPT writers on a real run, each killed in the middle of it.

Not part of `make test`: it repairs real packages for some minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis_server import RedisServer
from worker_process import WorkerProcess, wait_until

from hermes_queue import codec
from hermes_queue.ledger import Ledger

RUN = "proof"
ITEMS, SAMPLES = 4, 4


class Writer:
    """One `hermes-queue sink`, which may be killed and started again."""

    def __init__(self, url: str, kind: str, out: Path, *more: str) -> None:
        self.out = out
        self._command = [sys.executable, "-c", "from hermes_queue.cli import main; main()"]
        self._command += ["sink", kind, "--out", str(out), "--run", RUN, "--until-done", *more]
        self._env = {**os.environ, "HERMES_QUEUE_REDIS_URL": url}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._env)

    def kill(self) -> None:
        assert self.process.poll() is None, "it ended before it could be killed"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.mark.timeout(900)
def test_row_sets_are_the_ledgers_although_each_writer_was_killed(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    url = redis_server.url
    ledger = Ledger.connect(url=url)
    worker = WorkerProcess(url, tmp_path / "workers", concurrency=2).start()
    writers = [
        Writer(url, "parquet", tmp_path / "parquet", "--shard-rows", "4"),
        Writer(url, "sharegpt", tmp_path / "rows.jsonl"),
    ]
    began = time.monotonic()
    flags = ["--items", str(ITEMS), "--group-size", str(SAMPLES), "--run-id", RUN]
    subprocess.run(
        [sys.executable, "-m", "producers.swe_smith", *flags],
        env={**os.environ, "HERMES_QUEUE_REDIS_URL": url},
        check=True,
    )
    try:
        for closed, writer in enumerate(writers, start=1):
            wait_until(
                f"{closed} groups are published",
                lambda n=closed: ledger.client.xlen("hq:results") >= n,
                timeout_s=300,
            )
            writer.kill()
            writer.start()
        for writer in writers:
            assert writer.process.wait(600) == 0
    finally:
        worker.close()
        for writer in writers:
            if writer.process.poll() is None:
                writer.process.kill()
    print(f"{ITEMS} x {SAMPLES} trajectories: {time.monotonic() - began:.0f} s")
    check(ledger, tmp_path)
    ledger.close()


def check(ledger: Ledger, folder: Path) -> None:
    """What the files hold is what the ledger says, record by record."""
    import datasets
    import pyarrow.parquet as pq

    records = {}
    for _, fields in ledger.client.xrange("hq:results"):
        for name in json.loads(fields[b"members"]):
            records[name] = codec.decode_record(ledger.client.get(f"hq:body:{name}"))
    assert len(records) == ITEMS * SAMPLES
    rows = pq.read_table(folder / "parquet").to_pylist()
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for found, score in ((rows, "score"), (lines, "reward")):
        assert len(found) == len(records)
        assert {r["trajectory_id"]: r[score] for r in found} == {
            name: record.score for name, record in records.items()
        }
    opened = datasets.load_dataset(str(folder / "parquet"), cache_dir=str(folder / "cache"))
    assert opened["train"].num_rows == len(records)
    text = {"train": str(folder / "rows.jsonl")}
    loaded = datasets.load_dataset("json", data_files=text, cache_dir=str(folder / "cache"))
    assert loaded["train"].num_rows == len(records)
