"""`hermes-queue regrade` up to its jobs: what does not fit is refused before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import make_group, make_job, make_record

from envs.gsm8k import ENV
from hermes_plugins.regrade.plan import plan_regrade
from hermes_plugins.regrade.records import PassedOver, recorded_work
from hermes_plugins.regrade.run import RegradeLaunch, RegradeRequest, regrade
from hermes_queue.errors import EXIT_INTERRUPTED, ConfigurationError
from hermes_queue.models import Message, ScoredTrajectory
from producers.run.options import (
    OutputOptions,
    RowOptions,
    RunOptions,
    parse,
)
from producers.run.single import producer_of

BUNDLED = Path(__file__).parents[3] / "producers" / "data"


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    row = {"instance_id": "a", "question": "?", "answer": "#### 7"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")


def record(instance: str = "a", env: str = "gsm8k", **more: Any) -> ScoredTrajectory:
    return make_record(make_job("old", instance, env=env)).model_copy(update=more)


def asked(dataset: str | None = "rows.jsonl", run_id: str | None = None, **output: Any) -> int:
    return regrade(
        RegradeRequest(
            source="old.jsonl",
            env=None,
            instance_ids=frozenset(),
            rows=RowOptions(dataset=dataset),
            run=RunOptions(run_id=run_id),
            output=OutputOptions(follow=True, quiet=True, **output),
            expect_same=False,
            more=(),
        )
    )


def test_the_run_of_the_old_records_takes_no_new_ones() -> None:
    Path("old.jsonl").write_text(record().to_json() + "\n")
    assert asked(dry_run=True) == 0
    with pytest.raises(ConfigurationError, match="is the run of the old records"):
        asked(run_id="old", dry_run=True)


def test_the_file_of_the_old_records_takes_no_new_ones() -> None:
    Path("old.jsonl").write_text(record().to_json() + "\n")
    with pytest.raises(ConfigurationError, match="is the file of the old records"):
        asked(out=Path("old.jsonl"), dry_run=True)


def test_an_interrupted_regrade_begins_no_other_env(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def embedded(launch: RegradeLaunch) -> int:
        begun.append(launch.options.run.env)
        return EXIT_INTERRUPTED

    monkeypatch.setattr(RegradeLaunch, "embedded", embedded)
    lines = []
    for env in ("gsm8k", "swe_smith"):
        with (BUNDLED / f"{env}.jsonl").open() as file:
            instance = json.loads(file.readline())["instance_id"]
        lines.append(record(instance, env, report={"patch": "", "patch_bytes": 0}).to_json())
    Path("old.jsonl").write_text("\n".join(lines) + "\n")
    assert asked(dataset=None) == EXIT_INTERRUPTED
    assert begun == ["gsm8k"]


def regraded_as(record: ScoredTrajectory) -> list[str]:
    producer = producer_of("gsm8k")
    options = parse(producer, ["--dataset", "rows.jsonl", "--run-id", "new"])
    works = recorded_work([make_group(record)], PassedOver())
    plan, selected = plan_regrade(producer, ENV, options, works, PassedOver())
    return [job.trajectory_id for job in plan.jobs(selected, lambda _: True)]


def test_a_record_of_another_life_of_its_run_is_another_measurement() -> None:
    other = record(messages=(Message(role="assistant", content="8"),))
    assert regraded_as(record()) == regraded_as(record())
    assert not set(regraded_as(record())) & set(regraded_as(other))
