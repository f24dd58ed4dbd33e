"""Regrading without any setup, and of a run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record
from worker_process import wait_until
from zygote import run_forked, start_forked

from hermes_plugins.regrade.records import PassedOver, read_groups, recorded_work
from hermes_queue.errors import EXIT_INTERRUPTED
from hermes_queue.ledger import Ledger
from hermes_queue.models import Message
from hermes_queue.settings import PathSettings

GOLD = {"a": "7", "b": "8", "c": "9"}
"""Right answers of the rows as they are today."""
SAID = {"a": ("7", 1.0), "b": ("8", 0.0), "c": ("1", 1.0)}
"""What was answered when, and what that scored by the rows of then."""


@pytest.mark.fleet
def test_everything_runs_here_if_there_is_no_redis_and_only_once(tmp_path: Path) -> None:
    name = f"old-{os.getpid()}"
    records = [make_record(make_job(instance="task", env="prompts"))]
    for instance, (answer, score) in SAID.items():
        text = (Message(role="assistant", content=f"\\boxed{{{answer}}}"),)
        record = make_record(make_job(instance=instance), score)
        records.append(record.model_copy(update={"messages": text}))
    (tmp_path / f"{name}.jsonl").write_text("".join(r.to_json() + "\n" for r in records))
    rows = [{"instance_id": i, "question": "?", "answer": f"#### {n}"} for i, n in GOLD.items()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    words = ("regrade", f"{name}.jsonl", "--dataset", "rows.jsonl", "--json")
    run_id = f"regrade-gsm8k-{name}"
    try:
        first, second = (
            run_forked("hermes_queue.cli", *words, environment=settings, directory=tmp_path)
            for _ in range(2)
        )
    finally:
        shutil.rmtree(PathSettings().cache / "embedded" / run_id, ignore_errors=True)
    summary = json.loads(first.stdout)
    assert {each["instance_id"]: each["change"] for each in summary["changed"]} == {
        "b": "raised",
        "c": "lowered",
    }
    assert (summary["same"], summary["failed"]) == (1, 0)
    [(reason, count)] = summary["not_regraded"].items()
    assert (reason, count, first.returncode) == ("env prompts has no verifier", 1, 1)
    assert json.loads(second.stdout) == summary
    written = (tmp_path / "results" / f"{run_id}.jsonl").read_text().splitlines()
    assert len(written) == len(SAID)
    assert all(json.loads(line)["evaluation"] for line in written)


def test_a_run_is_read_from_the_stream(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", ledger.url)
    for run_id in ("run1", "run2"):
        job = make_job(run_id)
        enqueue(ledger, job)
        begin(ledger, job)
        publish(ledger, make_record(job))
    passed = PassedOver()
    [work] = recorded_work(read_groups("run1", stream=True, passed_over=passed), passed)
    assert (work.record.run_id, work.record.score, work.outcome) == ("run1", 1.0, {"answer": "2"})


@pytest.mark.fleet
def test_an_end_by_sigterm_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    name, gate = f"ended-{os.getpid()}", tmp_path / "gate"
    support = Path(__file__).parents[2] / "support"
    record = make_record(make_job(instance="word", env="gated_env:ENV"))
    (tmp_path / f"{name}.jsonl").write_text(record.to_json() + "\n")
    row = {"instance_id": "word", "right": "2", "gate": str(gate)}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    settings = {**clean, "PYTHONPATH": f"{support.parents[1]}:{support}"}
    flags = ("--env", "gated_env:ENV", "--dataset", "rows.jsonl", "--json")
    words = ("hermes_queue.cli", "regrade", f"{name}.jsonl", *flags)
    state = PathSettings().cache / "embedded" / f"regrade-gated_env-{name}"
    process = start_forked(*words, environment=settings, directory=tmp_path)
    try:
        log = state / "worker.log"
        wait_until("the worker", lambda: log.exists() and " ready." in log.read_text())
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == EXIT_INTERRUPTED
        psutil.wait_procs(children, timeout=30)
        assert not [child for child in children if child.is_running()]
        gate.touch()
        again = run_forked(*words, environment=settings, directory=tmp_path)
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(state, ignore_errors=True)
    assert (again.returncode, json.loads(again.stdout)["same"]) == (0, 1), again.stderr
