"""What a regrade takes from records, and how it compares scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records import make_group, make_job, make_record
from sums_env import ENV as SUMS

from envs.base import Regradable
from envs.swe_smith import ENV as SWE
from hermes_plugins.regrade.comparison import Rescored, rescored_in
from hermes_plugins.regrade.plan import default_run_id
from hermes_plugins.regrade.records import (
    ANOTHER,
    IS_REGRADE,
    NO_TURN,
    UNMEASURED,
    WORK_MAX_BYTES,
    PassedOver,
    read_groups,
    recorded_work,
)
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.models import (
    AgentSpec,
    Message,
    Regraded,
    ScoredTrajectory,
)

OLD = Regraded(run_id="run", trajectory_id="run.1.0", score=1.0, item_sha256="a")
SPEC = AgentSpec(
    kind="recorded", params={"outcome": {"answer": "7"}, "record": OLD.model_dump(mode="json")}
)
PATCH = "diff --git a/a.py b/a.py\n"


def said(*texts: str, **more: Any) -> ScoredTrajectory:
    messages = [Message(role="assistant", content=text) for text in texts]
    return make_record(make_job()).model_copy(update={"messages": tuple(messages), **more})


def regraded(score: float | None = 0.0, **more: Any) -> ScoredTrajectory:
    record = make_record(make_job("new"), score)
    return record.model_copy(update={"evaluation": True, "regraded": OLD, **more})


def test_envs_that_grade_the_slot_alone_are_refused_by_name() -> None:
    assert isinstance(SWE, Regradable)
    assert not isinstance(SUMS, Regradable)
    passed = PassedOver()
    record = make_record(make_job(env="sums_env:ENV"))
    assert recorded_work([make_group(record)], passed, env="sums_env:ENV") == []
    [reason] = passed.reasons
    assert reason.startswith("env sums_env:ENV grades what the agent left in its slot")


def test_what_has_no_score_or_no_verifier_or_is_a_regrade_is_counted_by_reason() -> None:
    passed = PassedOver()
    groups = [
        make_group(make_record(make_job(), None)),
        make_group(regraded()),
        make_group(make_record(make_job(instance="p", env="prompts"))),
        make_group(make_record(make_job(instance="t")).model_copy(update={"turns": ()})),
    ]
    assert recorded_work(groups, passed) == []
    no_verifier = "env prompts has no verifier"
    assert passed.reasons == {UNMEASURED: 1, IS_REGRADE: 1, no_verifier: 1, NO_TURN: 1}


def test_work_that_no_job_can_carry_is_refused() -> None:
    passed = PassedOver()
    groups = [make_group(said("x" * WORK_MAX_BYTES)), make_group(said("\ud83d"))]
    assert recorded_work(groups, passed) == []
    assert sorted(passed.reasons) == [
        "its work has half a character, which UTF-8 cannot encode",
        f"its work has more than {WORK_MAX_BYTES} bytes",
    ]


def test_a_record_that_stands_twice_is_taken_once() -> None:
    groups = [make_group(said("7")), make_group(said("7"))]
    [work] = recorded_work(groups, PassedOver())
    assert (work.outcome, work.record.score) == ({"answer": "7"}, 1.0)


@pytest.mark.parametrize("created", [float("nan"), float("inf")])
def test_a_record_that_was_never_made_is_refused(created: float) -> None:
    passed = PassedOver()
    assert recorded_work([make_group(said("7", created=created))], passed) == []
    assert passed.reasons == {"its created is invalid": 1}


def test_a_record_cannot_fill_a_job_with_what_it_says_of_itself() -> None:
    record = said("7")
    provenance = record.provenance.model_copy(update={"env_version": "1" * WORK_MAX_BYTES})
    passed = PassedOver()
    groups = [make_group(record.model_copy(update={"provenance": provenance}))]
    assert recorded_work(groups, passed) == []
    assert passed.reasons == {f"its work has more than {WORK_MAX_BYTES} bytes": 1}


def test_a_line_that_nests_without_end_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('{"report":' + "[" * 100_000 + "\n")
    with pytest.raises(InputError, match="is not a record"):
        list(read_groups(str(path), stream=False, passed_over=PassedOver()))


def test_another_record_of_a_trajectory_is_counted() -> None:
    passed = PassedOver()
    groups = [make_group(said("7")), make_group(said("8"))]
    [work] = recorded_work(groups, passed)
    assert (work.outcome, passed.reasons) == ({"answer": "7"}, {ANOTHER: 1})


def test_a_record_runs_no_code_that_nobody_has_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_env.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    record = make_record(make_job(env="planted_env:ENV"))
    passed = PassedOver()
    assert recorded_work([make_group(record)], passed) == []
    assert not Path("ran").exists()
    [reason] = passed.reasons
    assert "name it with --env" in reason
    with pytest.raises(ConfigurationError):  # it is no env, but now it was asked for
        recorded_work([make_group(record)], passed, env="planted_env:ENV")
    assert Path("ran").exists()


def test_a_file_that_is_not_there_is_not_taken_for_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_groups(str(tmp_path / "gone.jsonl"), stream=False, passed_over=PassedOver())


def test_the_run_is_named_after_env_and_source() -> None:
    assert default_run_id("gsm8k", "results/run 1.jsonl") == "regrade-gsm8k-run-1"
    assert default_run_id("a.b:ENV", "run1") == default_run_id("a.b:ENV", "run1")
    assert len(default_run_id("gsm8k", "x" * 500)) <= 200


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [(1.0, 1.0, "same"), (0.0, 0.5, "raised"), (1.0, 0.0, "lowered"), (1.0, None, "failed")],
)
def test_scores_are_compared(old: float, new: float | None, change: str) -> None:
    record = regraded(new, regraded=OLD.model_copy(update={"score": old}))
    rescored = Rescored.of(record)
    assert rescored is not None
    assert (rescored.change, rescored.old, rescored.new) == (change, old, new)
    assert rescored.row_changed


def test_a_regrade_that_was_run_again_counts_by_its_last_end(tmp_path: Path) -> None:
    planned = regraded(None)
    again = {
        "requeued_from": planned.trajectory_id,
        "group_id": "run.2",
        "trajectory_id": "run.2.0",
    }
    other = {"requeued_from": "run.9.0", "group_id": "run.3", "trajectory_id": "run.3.0"}
    records = (planned, regraded(1.0, **again), regraded(0.0, **other))
    path = tmp_path / "new.jsonl"
    path.write_text("".join(record.to_json() + "\n" for record in records))
    [found] = rescored_in(path, [planned.group_id])
    assert (found.change, found.new) == ("same", 1.0)
