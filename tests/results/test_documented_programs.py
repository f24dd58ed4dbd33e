"""Every Python block in the documentation runs as it stands, on a Redis that holds a finished run.

Blocks that are files of an example are run by tests/e2e/test_own_pieces.py, those of results.md by
test_documented_examples.py, which also looks at what they print. A block that cannot run says so
to us: `<!-- not run: why -->` above it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from ledger_steps import begin, enqueue, publish
from pages import ROOT, Block, all_blocks, page_id
from records import make_job, make_record
from redis_server import RedisServer
from worker_process import wait_until
from zygote import zygote

from hermes_queue.ledger import Ledger

EVERY = all_blocks("python")
ELSEWHERE = {"docs/results.md"}
FIXTURES = [block for block in EVERY if "pytest_plugins" in block.text]
PROGRAMS = [
    block
    for block in EVERY
    if page_id(block.page) not in ELSEWHERE
    and block not in FIXTURES
    and not block.says("file")
    and not block.says("not run")
]
SUPPORT = ROOT / "tests" / "support"


@pytest.fixture
def finished_run(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Two groups of the run `run1`; the client reads bytes."""
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        for instance in ("a", "b"):
            jobs = [make_job("run1", instance, i, 2) for i in range(2)]
            enqueue(ledger, *jobs)
            for job in jobs:
                begin(ledger, job)
                publish(ledger, make_record(job, float(job.sample_index)))
        yield client


def all_is_read(client: redis.Redis) -> bool:
    """Whether every consumer group has acknowledged everything; None of them is not enough."""
    groups = client.xinfo_groups("hq:results")
    # Redis 6.2 does not tell a group's lag.
    newest = client.xinfo_stream("hq:results")["last-generated-id"]
    return bool(groups) and all(
        not group["pending"] and group["last-delivered-id"] == newest for group in groups
    )


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_block_runs_and_reads_everything_it_is_given(
    block: Block, finished_run: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "HERMES_QUEUE_REDIS_URL": redis_server.url,
        "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(tmp_path / "archive"),
        "PYTHONPATH": str(SUPPORT),
    }
    log = tmp_path / "log"
    with log.open("wb") as printed:
        process = zygote().start("python_block", [block.text], environment, printed, tmp_path)
    try:
        wait_until(
            "the block to end, or to have read all",
            lambda: process.poll() is not None or all_is_read(finished_run),
        )
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    ended = process.returncode == 0 or log.read_text().rstrip().endswith("KeyboardInterrupt")
    assert ended, log.read_text()
    if "hermes_queue.consume" in block.text:
        assert all_is_read(finished_run)


@pytest.mark.parametrize("block", FIXTURES, ids=str)
def test_a_documented_test_passes(block: Block, tmp_path: Path) -> None:
    (tmp_path / "test_documented.py").write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
