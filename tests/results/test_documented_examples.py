"""The examples of docs/results.md run as they stand."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record
from redis_server import RedisServer
from zygote import run_forked

from hermes_queue.ledger import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def run(redis_server: RedisServer, tmp_path: Path):
    """Three groups of the run `run1`, and a call that executes an example on them."""
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        for instance, scores in (("same", (1.0, 1.0)), ("a", (0.0, 1.0)), ("b", (1.0, 0.0))):
            jobs = [make_job("run1", instance, i, 2) for i in range(2)]
            enqueue(ledger, *jobs)
            for job, score in zip(jobs, scores, strict=True):
                begin(ledger, job)
                publish(ledger, make_record(job, score))
        env = {**os.environ, "HERMES_QUEUE_REDIS_URL": redis_server.url}
        env["HERMES_QUEUE_ARCHIVE_DIRECTORY"] = str(tmp_path / "archive")
        env["PYTHONPATH"] = str(PAGE.parents[1] / "tests" / "support")

        def execute(marker: str, *arguments: str) -> list[str]:
            [code] = [block for block in BLOCKS if marker in block]
            done = run_forked(
                "python_block", code, *arguments, environment=env, directory=tmp_path, timeout_s=60
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        yield execute
        pending = [group["pending"] for group in client.xinfo_groups("hq:results")]
        assert not any(pending)


def test_the_plain_training_loop(run, tmp_path):
    assert run("train.py", "run1", "3") == [
        "step 0: same, mean score 1.00",
        "step 1: a, mean score 0.50",
        "step 2: b, mean score 0.50",
    ]
    # Both groups: +0.5 and -0.5 on the one token of the good and of the bad sample.
    assert (tmp_path / "checkpoint.json").read_text() == '{"3": 0.0}'


def test_the_batches_for_grpo(run):
    assert run("grpo.py", "run1", "2", "1") == ["2 groups, 4 sequences, advantages -1.00 to +1.00"]


def test_the_replay(run):
    assert run("hermes_queue.replay(") == ["same 1.0", "a 0.5", "b 0.5"]


def test_every_example_of_the_page_is_run():
    assert len(BLOCKS) == 3
