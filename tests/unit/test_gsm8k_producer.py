"""`python -m producers.gsm8k` on rows of its own and of the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from producers.base import main
from producers.gsm8k import PRODUCER

GOOD = {"question": "What is 6 times 7?", "answer": "<<6*7=42>>42\n#### 42"}


def dry_run(path: Path, rows: list[dict[str, Any]], *flags: str) -> int:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return main(PRODUCER, ["--dataset", str(path), "--dry-run", "--items", "all", *flags])


def test_the_bundled_rows_are_all_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PRODUCER, ["--items", "all", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == 14


def test_rows_in_the_public_form_need_no_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(tmp_path / "rows.jsonl", [{**GOOD, "level": "easy"}], "--json") == 0
    assert json.loads(capsys.readouterr().out)["items"] == 1


@pytest.mark.parametrize(
    ("row", "named"),
    [({"prompt": "x"}, "question"), ({**GOOD, "answer": "42"}, "#### N")],
)
def test_an_unusable_row_is_named_by_place_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], named: str
) -> None:
    assert dry_run(tmp_path / "rows.jsonl", [GOOD, row]) == 2
    output = capsys.readouterr().err
    assert "rows.jsonl:2" in output
    assert named in output
