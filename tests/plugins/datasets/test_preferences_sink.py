"""`hermes-queue sink preferences`: the pairs of each group once, whatever is killed when."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from sink_process import run_sink

from hermes_queue.ledger import Ledger
from hermes_queue.models import Message

pytestmark = pytest.mark.xdist_group("sinks")

DIES_AT_THE_SECOND_ACK = """
import os, signal
from hermes_queue.results.reader import StreamReader
real, calls = StreamReader._ack, 1
def dies(*a, **k):
    global calls
    calls -= 1
    return os.kill(os.getpid(), signal.SIGKILL) if calls < 0 else real(*a, **k)
StreamReader._ack = dies
"""


def publish(ledger: Ledger, instances: range) -> None:
    for instance in instances:
        jobs = [make_job("run", f"i{instance}", sample, 4) for sample in range(4)]
        enqueue(ledger, *jobs)
        for job, score in zip(jobs, (0.0, 1.0, None, 0.5), strict=True):
            begin(ledger, job)
            record = make_record(job, score)
            said = Message(role="assistant", content=f"answer {job.sample_index}")
            messages = (record.messages[0], said)
            publish_record(ledger, record.model_copy(update={"messages": messages}))


def pairs(out: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return sorted(
        (row["instance_id"], row["chosen_id"][-1] + row["rejected_id"][-1]) for row in rows
    )


def test_a_killed_sink_pairs_each_group_once_also_with_other_options_later(ledger, tmp_path):
    publish(ledger, range(20))
    out = tmp_path / "o.jsonl"
    flags = ["sink", "preferences", "--out", out, "--run", "run", "--until-done", "--json"]
    killed = run_sink(ledger, *flags, before=DIES_AT_THE_SECOND_ACK)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    made = pairs(out)
    assert 0 < len(made) < 20
    done = run_sink(ledger, *flags, "--pairs-per-group", "3", "--reuse-members")
    assert done.returncode == 0, done.stderr
    assert made == [pair for pair in pairs(out) if pair[0] in dict(made)]
    later = {f"i{n}" for n in range(20)} - dict(made).keys()
    assert [pair for pair in pairs(out) if pair[0] in later] == sorted(
        (name, pair) for name in later for pair in ("10", "13", "30")
    )
    summary = json.loads(done.stdout)
    assert summary["rows"] == 3 * len(later)
    assert summary["held"] == 2 * len(made) + 3 * len(later)
