"""The rows that come with the package: enough, small, pinned, and nobody else's code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import producers
from envs.swe.item import PYTEST_OWN, Item, skip_reason
from envs.swe.package.project import normalize

DATA = Path(producers.__file__).parent / "data"
FILE = DATA / "swe_smith.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]
LICENSES = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC"}
KEYS = {
    "instance_id",
    "repo",
    "version",
    "license",
    "strategy",
    "problem_statement",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "source",
    "clean_commit",
    "base_commit",
    "mutation",
    "environment",
    "test_secs",
}

each_row = pytest.mark.parametrize("row", ROWS, ids=[row["instance_id"] for row in ROWS])


def test_there_are_enough_rows_of_enough_packages() -> None:
    assert len(ROWS) >= 12
    assert len({row["source"]["name"] for row in ROWS}) >= 6


def test_rows_have_different_names_and_the_file_is_small() -> None:
    assert len({row["instance_id"] for row in ROWS}) == len(ROWS)
    assert FILE.stat().st_size < 300_000


def test_kinds_of_bugs_vary() -> None:
    assert len({row["strategy"] for row in ROWS}) >= 8


@each_row
def test_a_row_is_a_valid_task(row: dict[str, Any]) -> None:
    item = Item.model_validate(row)
    assert skip_reason(row) is None
    assert not set(item.FAIL_TO_PASS) & set(item.PASS_TO_PASS)
    assert item.PASS_TO_PASS
    assert item.base_commit
    assert item.clean_commit


@each_row
def test_a_row_has_no_field_that_could_hold_code(row: dict[str, Any]) -> None:
    assert set(row) == KEYS
    for part in row["mutation"]["files"]:
        assert set(part) == {"file", "sha256_before", "sha256_after", "edits"}
        for edit in part["edits"]:
            assert set(edit) <= {"start", "end", "text", "copy_from", "kind", "function", "line"}
            assert re.fullmatch(r"[a-zA-Z0-9 <>=!+*/%&|-]{0,12}", edit.get("text", ""))


@each_row
def test_a_row_has_one_small_bug_in_the_package_not_in_its_tests(row: dict[str, Any]) -> None:
    [part] = row["mutation"]["files"]
    assert len(part["edits"]) <= 2
    assert "test" not in part["file"]
    assert row["strategy"] in row["instance_id"]


@each_row
def test_licences_are_permissive(row: dict[str, Any]) -> None:
    assert row["license"] in LICENSES


@each_row
def test_everything_is_pinned_and_no_clean_copy_is_installed(row: dict[str, Any]) -> None:
    names = set()
    for requirement in row["environment"]["requirements"]:
        name, separator, version = requirement.partition("==")
        assert separator
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version)
        names.add(normalize(name))
    assert "pytest" in names
    assert normalize(row["source"]["name"]) not in names | PYTEST_OWN


@each_row
def test_rows_run_on_every_python_of_the_worker(row: dict[str, Any]) -> None:
    assert "python" not in row["environment"]


@each_row
def test_statements_are_prose_that_names_no_test(row: dict[str, Any]) -> None:
    statement = row["problem_statement"]
    assert 100 < len(statement) < 2500
    assert not re.search(r"```|::|\bassert\b|\bdef \w+\(|\bimport \w+|test_\w+", statement)


def test_the_notice_names_every_package_with_version_and_licence() -> None:
    notice = (DATA / "swe_smith.NOTICE.md").read_text()
    for row in ROWS:
        pin = f"{row['source']['name']}=={row['source']['version']}"
        assert f"--package {pin} " in notice
        assert re.search(
            rf"^\| {re.escape(row['source']['name'])} .*{row['license']}", notice, re.M
        )
