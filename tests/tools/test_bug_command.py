"""The command line of the bug generator: flags, exit codes, the file of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_queue.errors import InputError
from tools.make_bugs.command import main, pythons_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--package", "schedule"], "--package: 'schedule' is not NAME==VERSION"),
        (["--package", "pluggy==1.6.0"], "pluggy cannot be used: pytest itself needs it"),
        (["--package", "a==1", "--python", "python3.12"], "--python: 'python3.12' is not"),
    ],
)
def test_wrong_flags_end_with_exit_code_2_before_anything_runs(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "rows.jsonl")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_count_below_one_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--package", "a==1", "--out", "x", "--count", count])
    assert caught.value.code == 2
    assert "--count" in capsys.readouterr().err


def test_help_teaches_with_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--package schedule==1.2.2" in text
    assert "exit codes:" in text


@pytest.mark.parametrize("line", ["{", "[]", '{"instance_id": "a"}', '{"mutation": {"files": []}}'])
def test_a_file_of_other_things_is_not_appended_to(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text(line + "\n")
    assert main(["--package", "a==1", "--out", str(out)]) == 2
    assert "--out: line 1 of" in capsys.readouterr().err
    assert out.read_text() == line + "\n"


def test_an_out_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--package", "a==1", "--out", str(tmp_path)]) == 2
    assert "--out:" in capsys.readouterr().err


def test_the_workers_own_python_comes_first_and_once() -> None:
    own, *others = pythons_of(["3.11,3.12", "3.13", "3.12"])
    assert own is None
    assert len(others) == len(set(others)) == len({"3.11", "3.12", "3.13"} - {_own()})


def _own() -> str:
    import sys

    return f"{sys.version_info.major}.{sys.version_info.minor}"


def test_versions_with_three_parts_are_refused() -> None:
    with pytest.raises(InputError, match="--python"):
        pythons_of(["3.12.1"])


def test_rows_of_the_file_are_json_lines(tmp_path: Path) -> None:
    from tools.make_bugs.command import _Out

    row = {
        "instance_id": "a",
        "strategy": "cmp_flip",
        "source": {"sha256": "0"},
        "mutation": {"files": [{"file": "x.py", "edits": [{"function": "f"}]}]},
    }
    path = tmp_path / "rows.jsonl"
    with _Out(path) as out:
        assert out.write(row)
        assert not out.write(row)
    with _Out(path) as out:
        assert not out.write(row)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row]
