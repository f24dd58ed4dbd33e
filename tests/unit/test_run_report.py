"""What a person reads at the end of a run: the table, and where scores are not as expected."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from producers.run.options import OutputOptions
from producers.run.progress import ResultRow, console, print_table
from producers.run.report import Report, Summary

ROW = ResultRow(
    instance_id="o__p.1",
    sample_index=0,
    stop_reason="no_tool_call",
    score=0.0,
    turns=2,
    seconds=1.5,
    note="tests_fail: PackageNotFoundError: webargs",
)
LONG = "marshmallow-code__apispec.8b421526.func_pm_op_swap__53fevqi2" + "x" * 120


def shown(rows: list[ResultRow], target: Console, stream: io.StringIO) -> str:
    print_table(rows, target)
    return stream.getvalue()


def test_ids_stay_whole_in_a_file() -> None:
    stream = io.StringIO()
    rows = [replace(ROW, instance_id=LONG, note="a " * 120), ROW]
    text = shown(rows, console(stream), stream)
    assert any(line.startswith(LONG + " ") for line in text.splitlines())


def test_ids_are_folded_on_a_narrow_terminal() -> None:
    stream = io.StringIO()
    target = Console(file=stream, width=100, force_terminal=True)
    assert LONG not in shown([replace(ROW, instance_id=LONG)], target, stream)


def test_unexpected_scores_name_each_cause_once(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary("r", "embedded", "d", 8, 8, {}, [])
    report = Report(summary, {}, OutputOptions(expect_score=1.0))
    report.rows = [replace(ROW, instance_id=f"o__p.{n}") for n in range(7)]
    report.rows = [replace(ROW, score=None, note="EnvBug in setup: no"), *report.rows]
    assert report.unexpected() == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: o__p.0 sample 0, o__p.1 sample 0, o__p.2 sample 0, o__p.3 sample 0, "
        "o__p.4 sample 0 and 2 more: score 0.0, expected 1 "
        "(tests_fail: PackageNotFoundError: webargs)",
        "error: o__p.1 sample 0: score None, expected 1 (EnvBug in setup: no)",
    ]


def test_expected_scores_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary("r", "embedded", "d", 1, 1, {}, [])
    report = Report(summary, {}, OutputOptions(expect_score=0.0))
    report.rows = [ROW]
    assert report.unexpected() == 0
    assert capsys.readouterr().err == ""
