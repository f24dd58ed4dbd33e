"""`make datasets`: Parquet, ShareGPT and Atropos sinks on one real run, each killed in the middle.

Not part of `make test`: it works on real packages for some minutes. The model is a stub that gives
token ids, since a trainer wants tokens; what it says solves nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from atropos_api import AtroposApi
from redis_server import RedisServer
from token_stub import TokenStub
from worker_process import WorkerProcess, wait_until

from hermes_queue.bodies import codec
from hermes_queue.ledger import Ledger
from hermes_queue.models import ScoredTrajectory

RUN = "proof"
ITEMS, SAMPLES = 4, 4


LOOK = '<tool_call>{"name": "terminal", "arguments": {"command":"ls"}}</tool_call>'
SUPPORT = Path(__file__).parents[1] / "support"


class Sink:
    """One `hermes-queue sink`, which may be killed and started again."""

    def __init__(self, url: str, kind: str, *more: str) -> None:
        self._command = [sys.executable, "-c", "from hermes_queue.cli import main; main()"]
        self._command += ["sink", kind, "--run", RUN, *more]
        self._env = {**os.environ, "HERMES_QUEUE_REDIS_URL": url}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._env)

    def kill(self) -> None:
        assert self.process.poll() is None, "it ended before it could be killed"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def model() -> Iterator[str]:
    """The URL of a model that looks around now and then and gives up."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stub = TokenStub([LOOK, "I give up."] * 500, max_model_tokens=100_000)
    asyncio.run_coroutine_threadsafe(stub.__aenter__(), loop).result(10)
    yield stub.url
    asyncio.run_coroutine_threadsafe(stub.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[AtroposApi]:
    """A real Atropos server with a trainer that writes down what it was given."""
    server = AtroposApi(tmp_path / "api.log")
    server.start()
    log, script = str(tmp_path / "trained.jsonl"), str(SUPPORT / "atropos_trainer.py")
    process = subprocess.Popen(
        [sys.executable, script, server.url, log, "--batch-size", str(SAMPLES)]
    )
    yield server
    process.kill()
    process.wait()
    server.kill9()


def produce(url: str, model: str) -> None:
    flags = ["--items", str(ITEMS), "--group-size", str(SAMPLES), "--run-id", RUN]
    flags += ["--agent", "openai", "--model", "m", "--base-url", model]
    subprocess.run(
        [sys.executable, "-m", "producers.swe_smith", *flags, "--agent-param", "token_ids=true"],
        env={**os.environ, "HERMES_QUEUE_REDIS_URL": url},
        check=True,
    )


@pytest.mark.timeout(900)
def test_each_sink_holds_what_the_ledger_holds_although_it_was_killed(
    redis_server: RedisServer, tmp_path: Path, model: str, trainer: AtroposApi
) -> None:
    url = redis_server.url
    ledger = Ledger.connect(url=url)
    worker = WorkerProcess(url, tmp_path / "workers", concurrency=2).start()
    parquet = ("--out", str(tmp_path / "parquet"), "--shard-rows", "4", "--until-done")
    writers = [
        Sink(url, "parquet", *parquet),
        Sink(url, "sharegpt", "--out", str(tmp_path / "rows.jsonl"), "--until-done"),
    ]
    atropos = Sink(url, "atropos", "--url", trainer.url, "--settle", "0.3")
    began = time.monotonic()
    produce(url, model)
    try:
        for closed, sink in enumerate((*writers, atropos), start=1):
            wait_until(
                f"{closed} groups are published",
                lambda n=closed: ledger.client.xlen("hq:results") >= n,
                timeout_s=300,
            )
            sink.kill()
            sink.start()
        for writer in writers:
            assert writer.process.wait(600) == 0
        wait_until("the trainer has all", lambda: len(trained(tmp_path)) == ITEMS * SAMPLES)
        atropos.process.terminate()
        assert atropos.process.wait(60) == 0
    finally:
        worker.close()
        for sink in (*writers, atropos):
            if sink.process.poll() is None:
                sink.process.kill()
    print(f"{ITEMS} x {SAMPLES} trajectories: {time.monotonic() - began:.0f} s")
    records = published(ledger)
    ledger.close()
    assert set(trained(tmp_path)) == set(records)
    check(records, tmp_path)


def trained(folder: Path) -> list[str]:
    """Trajectory ids in the trainer's log, repetitions left out."""
    log = folder / "trained.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return list(dict.fromkeys(name for line in lines for name in json.loads(line)["ids"]))


def published(ledger: Ledger) -> dict[str, ScoredTrajectory]:
    """The records of the run, all of which the ledger calls final."""
    records = {}
    for _, fields in ledger.client.xrange("hq:results"):
        for name in json.loads(fields[b"members"]):
            records[name] = codec.decode_record(ledger.client.get(f"hq:body:{name}"))
            assert ledger.client.hget(f"hq:traj:{name}", "state") == b"final"
    assert len(records) == ITEMS * SAMPLES == ledger.run_status(RUN).finished
    assert all(record.sequences for record in records.values())
    return records


def check(records: dict[str, ScoredTrajectory], folder: Path) -> None:
    """What the files hold is what the ledger says, record by record."""
    import datasets
    import pandas
    import pyarrow.parquet as pq

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
    ids = [sequence.ids for record in records.values() for sequence in record.sequences or ()]
    written = pandas.DataFrame({"ids": ids}).to_json(orient="values", default_handler=list)
    assert [row for (row,) in json.loads(written)] == [list(each) for each in ids]
