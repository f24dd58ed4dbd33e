"""Regrading through the queue: each record once, whatever is killed, and never a made-up score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import make_job, make_record
from worker_process import WorkerProcess, wait_until
from zygote import start_forked

from hermes_queue.ledger import Ledger
from hermes_queue.models import Message

SUPPORT = Path(__file__).parents[2] / "support"
WORDS = {"one": 1.0, "two": 0.0, "three": 1.0}
"""Recorded answers, which are also instance ids, with the score that each had."""


def write_records(path: Path) -> None:
    lines = []
    for word, score in WORDS.items():
        record = make_record(make_job("old", word, env="gated_env:ENV"), score)
        said = (Message(role="assistant", content=word),)
        of_old_row = record.provenance.model_copy(update={"item_sha256": "0" * 64})
        update = {"messages": said, "provenance": of_old_row}
        lines.append(record.model_copy(update=update).to_json())
    path.write_text("\n".join(lines) + "\n")


def write_rows(path: Path, **right: str) -> None:
    """Rows of today: the right word of each instance, and what else its row has."""
    rows = [{"instance_id": word, "right": right.get(word, word)} for word in WORDS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Command:
    """`hermes-queue regrade old.jsonl` in a directory of its own."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self.directory = directory
        self._environment = {
            **os.environ,
            "HERMES_QUEUE_REDIS_URL": redis_url,
            "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(directory / "archive"),
            "PYTHONPATH": f"{SUPPORT.parents[1]}:{SUPPORT}",
        }

    def start(self, *flags: str) -> Any:
        words = ("regrade", "old.jsonl", "--env", "gated_env:ENV", "--dataset", "rows.jsonl")
        return start_forked(
            "hermes_queue.cli",
            *words,
            "--json",
            *flags,
            environment=self._environment,
            directory=self.directory,
        )

    def end(self, process: Any) -> tuple[int, dict[str, Any]]:
        code = process.wait(120)
        out, err = process.communicate()
        assert out, err
        return code, json.loads(out)

    def run(self, *flags: str) -> tuple[int, dict[str, Any]]:
        return self.end(self.start(*flags))

    def records(self) -> list[dict[str, Any]]:
        lines = (self.directory / "results/regrade-gated_env-old.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def command(tmp_path: Path, redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT.parents[1]}:{SUPPORT}")  # of the workers
    write_records(tmp_path / "old.jsonl")
    return Command(tmp_path, redis_server.url)


def test_a_worker_killed_while_it_verifies_costs_no_record_and_doubles_none(
    command: Command, ledger: Ledger, start_worker: Callable[..., WorkerProcess]
) -> None:
    gate = command.directory / "gate"
    rows = [{"instance_id": word, "right": word, "gate": str(gate)} for word in WORDS]
    (command.directory / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    doomed = start_worker(concurrency=3)
    process, run_id = command.start(), "regrade-gated_env-old"
    wait_until("all verify", lambda: ledger.run_status(run_id).running == len(WORDS))
    doomed.kill9()
    gate.touch()
    start_worker(concurrency=3)
    code, summary = command.end(process)
    assert code == 0
    assert (summary["same"], summary["raised"]) == (2, 1)
    records = command.records()
    assert sorted(r["regraded"]["trajectory_id"] for r in records) == sorted(
        make_job("old", word).trajectory_id for word in WORDS
    )
    assert {r["epoch"] for r in records} == {2}


def test_a_second_regrade_counts_nothing_twice_and_takes_what_has_changed(
    command: Command, ledger: Ledger, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(concurrency=2)
    write_rows(command.directory / "rows.jsonl", two="2")
    assert command.run()[1]["same"] == 3
    (command.directory / "results/regrade-gated_env-old.jsonl").unlink()
    code, again = command.run()  # from what Redis has
    assert (code, again["same"], len(command.records())) == (0, 3, 3)
    assert ledger.run_status("regrade-gated_env-old").total == 3

    write_rows(command.directory / "rows.jsonl", one="1")
    code, changed = command.run("--expect-same")
    assert code == 1
    assert {each["instance_id"]: each["change"] for each in changed["changed"]} == {
        "one": "lowered",
        "two": "raised",
    }
    assert all(each["row_changed"] is True for each in changed["changed"])
    assert len(command.records()) == 5, "a row that is as it was is not measured again"


def test_a_slot_that_fails_lowers_no_score(
    command: Command, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(concurrency=3, HERMES_QUEUE_RETRY_ATTEMPTS_SANDBOX="1")
    rows = [{"instance_id": word, "right": word, "breaks": word == "one"} for word in WORDS]
    (command.directory / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    code, summary = command.run()
    assert (code, summary["failed"], summary["lowered"]) == (1, 1, 0)
    [failed] = [each for each in summary["changed"] if each["change"] == "failed"]
    assert (failed["old"], failed["new"], failed["why"]) == (1.0, None, "the slot took nothing")
