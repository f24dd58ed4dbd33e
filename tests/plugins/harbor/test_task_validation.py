"""What the attempts of a validation say about a task, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from records import make_job

from hermes_plugins.harbor.sources.validated import read_validated
from hermes_plugins.harbor.task import GradingMode
from hermes_plugins.harbor.validation.measured import (
    AttemptResult,
    MeasuredMode,
    TaskToValidate,
    counted,
)
from hermes_plugins.harbor.validation.results import ResultsFile
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import AgentSpec

DIGEST = "a" * 64


def scores(*found: float | None) -> list[AttemptResult]:
    return [AttemptResult(score, 1.0, image="x sha256:" + DIGEST) for score in found]


def mode(
    oracle: Sequence[float | None] = (1,),
    nop: Sequence[float | None] = (0,),
    tamper: Sequence[float | None] = (0, 0),
    name: GradingMode = "transplant",
) -> MeasuredMode:
    ways = {f"way{n}": result for n, result in enumerate(scores(*tamper))}
    return MeasuredMode(name, scores(*oracle), scores(*nop), ways)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (mode(), "valid"),
        (mode(oracle=()), "no_oracle"),
        (mode(oracle=(0.5,)), "oracle_fails"),
        (mode(oracle=(1, 0)), "flaky"),
        (mode(nop=(0, 1)), "flaky"),
        (mode(nop=(0.5,)), "nop_passes"),
        (mode(oracle=(), nop=(1,)), "nop_passes"),
        (mode(tamper=(0, 1)), "forgeable"),
        (mode(oracle=(), tamper=(0, 0.2)), "forgeable"),
        (mode(oracle=(1, None)), "failed"),
        (mode(tamper=(1, None)), "failed"),
    ],
)
def test_scores_decide_the_verdict(measured: MeasuredMode, verdict: str) -> None:
    assert measured.verdict == verdict


def test_the_strictest_mode_in_which_the_solution_works_counts() -> None:
    strict, lax = mode(oracle=(0,), nop=(), tamper=()), mode(name="restart")
    assert counted([strict, lax]).mode == "restart"
    assert counted([mode(tamper=(1,)), lax]).verdict == "forgeable"
    assert counted([strict, strict]).verdict == "oracle_fails"
    assert counted([mode(oracle=(1, 0)), strict]).verdict == "flaky"


def task(instance_id: str = "one", digest: str = DIGEST) -> TaskToValidate:
    job = make_job(instance_id=instance_id, agent=AgentSpec(kind="nop"))
    row = {"instance_id": instance_id, "digest": digest}
    return TaskToValidate(row, job, job, {}, ("transplant", "restart"))


def test_a_line_is_what_producers_read(tmp_path: Path) -> None:
    file = ResultsFile(tmp_path / "v.jsonl", "local")
    file.add(
        task(), [mode(oracle=(0,), nop=(), tamper=()), mode(name="restart")], 1, all_modes=False
    )
    known = read_validated(tmp_path / "v.jsonl")[DIGEST]
    assert (known.verdict, known.mode) == ("valid", "restart")
    [line] = (tmp_path / "v.jsonl").read_text().splitlines()
    assert json.loads(line)["image_digest"] == "sha256:" + DIGEST


def measured_again(file: ResultsFile, repeat: int = 1, **given: Any) -> bool:
    return file.known(task(), repeat, **{"all_modes": False, **given}) is None


def test_a_task_in_the_file_is_not_measured_again_unless_more_is_asked(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "v.jsonl", "local").add(task(), [mode()], 2, all_modes=False)
    file = ResultsFile(tmp_path / "v.jsonl", "local")
    assert not measured_again(file)
    assert measured_again(file, repeat=3)
    assert measured_again(file, all_modes=True)
    assert file.known(task(digest="b" * 64), 1, all_modes=False) is None


def test_a_task_that_failed_is_measured_again(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "v.jsonl", "local").add(task(), [mode(nop=(None,))], 1, all_modes=False)
    assert measured_again(ResultsFile(tmp_path / "v.jsonl", "local"))


def test_a_line_that_was_cut_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    ResultsFile(path, "local").add(task(), [mode()], 1, all_modes=False)
    path.write_text(path.read_text() + '{"digest": "bb')
    ResultsFile(path, "local")
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "backend", "named"),
    [("{}\n", "local", ":1: is no line"), (None, "docker", "of the backend local")],
)
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, text: str | None, backend: str, named: str
) -> None:
    path = tmp_path / "v.jsonl"
    ResultsFile(path, "local").add(task(), [mode()], 1, all_modes=False)
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        ResultsFile(path, backend)
