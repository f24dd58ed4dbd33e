"""The bug generator on a small package of our own: nothing is faked.

pip finds the sdist in a directory; pytest and coverage come from the package index.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_package import CORE, TEST_CLAMP, make_sdist
from swe_bench import attempt

from tools.make_bugs.command import main

PACKAGE = "hermes-queue-sample==1.0"


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A cache and a find-links directory that slots can reach."""
    directory = Path(tempfile.mkdtemp(prefix="hq-bugs-"))
    directory.chmod(0o755)
    (directory / "links").mkdir()
    make_sdist(directory / "links")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def index(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds the sample, and assets stay in the module's own cache."""
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(directory / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory / "links"))


@pytest.fixture(scope="module")
def made(directory: Path) -> list[dict[str, Any]]:
    """The rows of one run, made once."""
    out = directory / "rows.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_QUEUE_PATHS_CACHE", str(directory / "cache"))
        patch.setenv("PIP_FIND_LINKS", str(directory / "links"))
        assert main(["--package", PACKAGE, "--count", "1", "--out", str(out)]) == 0
    return read(out)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.fleet
def test_a_row_pins_the_sdist_and_holds_no_code_of_it(made: list[dict[str, Any]]) -> None:
    [row] = made
    assert row["source"]["name"] == "hermes-queue-sample"
    assert row["FAIL_TO_PASS"]
    assert row["PASS_TO_PASS"]
    assert "patch" not in row
    text = json.dumps(row)
    for line in (CORE + TEST_CLAMP).splitlines():
        assert len(line.strip()) < 12 or line.strip() not in text


@pytest.mark.fleet
async def test_the_gold_answer_of_a_made_row_scores_one_and_doing_nothing_zero(
    made: list[dict[str, Any]],
) -> None:
    async with attempt(made[0]) as agent:
        assert (await agent.verify()).score == 0.0
    async with attempt(made[0]) as agent:
        await agent.solve()
        assert (await agent.verify()).score == 1.0


@pytest.mark.fleet
def test_the_same_seed_makes_the_same_row(made: list[dict[str, Any]], tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    assert main(["--package", PACKAGE, "--count", "1", "--out", str(out)]) == 0
    [again] = read(out)
    assert again | {"test_secs": 0} == made[0] | {"test_secs": 0}


@pytest.mark.fleet
def test_too_few_bugs_end_with_exit_code_1_and_rows_are_not_made_twice(
    made: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "more.jsonl"
    out.write_text(json.dumps(made[0]) + "\n")
    assert main(["--package", PACKAGE, "--count", "3", "--out", str(out)]) == 1
    assert "of 3 rows" in capsys.readouterr().err
    places = [row["mutation"]["files"][0]["edits"][0]["function"] for row in read(out)]
    assert len(set(places)) == len(places)


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--package", "hermes-queue-sample==9.9"], "has no sdist of hermes-queue-sample==9.9"),
        (["--package", "hermes-queue-no-such-thing==1"], "the package index has no sdist of"),
        (
            ["--package", PACKAGE, "--extra-requirement", "hermes-queue-no-such-thing==1"],
            "--extra-requirement: the package index has no hermes-queue-no-such-thing==1",
        ),
        (["--package", PACKAGE, "--extra-requirement", "-r x"], "--extra-requirement: '-r x'"),
        (["--package", PACKAGE, "--tests", "spec"], "--tests: the sdist has no tests at 'spec'"),
        (["--package", PACKAGE, "--python", "3.99"], "--python: Python 3.99 is required"),
        (["--package", PACKAGE, "--max-tests", "2"], "--max-tests: 4 tests"),
    ],
)
def test_what_cannot_be_used_is_named_and_leaves_no_file(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    assert main([*arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
