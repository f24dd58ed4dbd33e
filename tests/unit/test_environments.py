"""`--environments`: a table of what the tests of each repository need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_package import bug_patch, make_row

from envs.swe.item import Item
from envs.swe_smith import ENV
from hermes_queue.errors import InputError
from producers.environments import read_environments
from producers.run.dataset import open_dataset
from producers.run.options import parse
from producers.run.selection import select
from producers.swe_smith import PRODUCER

TABLE = {"someone/sample": {"requirements": ["pytest==8.4.2"], "python": "3.12", "env": {"A": "1"}}}


def items(directory: Path, rows: list[dict[str, Any]], *flags: str) -> list[Item]:
    """The items that the producer makes of `rows`."""
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = parse(PRODUCER, ["--dataset", str(path), *flags])
    selection = select(PRODUCER, ENV, open_dataset(str(path), bundled=path), arguments)
    return [Item.model_validate(selected.item()) for selected in selection.items]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.json", json.dumps(TABLE)),
        (
            "e.toml",
            '["someone/sample"]\nrequirements = ["pytest==8.4.2"]\npython = "3.12"\nenv = {A="1"}',
        ),
        (
            "e.yaml",
            "someone/sample:\n  requirements: [pytest==8.4.2]\n  python: '3.12'\n  env: {A: '1'}\n",
        ),
    ],
)
def test_the_table_fills_in_what_rows_leave_open(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    rows = [
        make_row(patch=bug_patch(), instance_id="bare", environment=None),
        make_row(patch=bug_patch(), instance_id="own", environment='{"python": "3.13"}'),
        make_row(patch=bug_patch(), instance_id="other", repo="a/b", environment=None),
    ]
    bare, own, other = items(tmp_path, rows, "--environments", str(tmp_path / name))
    assert bare.environment.requirements == own.environment.requirements == ("pytest==8.4.2",)
    assert (bare.environment.python, own.environment.python) == ("3.12", "3.13")
    assert other.environment == Item.model_validate(rows[2]).environment


def test_an_entry_may_be_for_one_version_of_a_repository(tmp_path: Path) -> None:
    old = {"requirements": ["pytest==7.4.4"]}
    (tmp_path / "e.json").write_text(json.dumps(TABLE | {"someone/sample@1.0": old}))
    versions = {"first": "1.0", "second": "2.0", "none": None}
    rows = [
        make_row(patch=bug_patch(), instance_id=name, environment=None, version=version)
        for name, version in versions.items()
    ]
    first, second, none = items(tmp_path, rows, "--environments", str(tmp_path / "e.json"))
    assert (first.environment.requirements, first.environment.python) == (("pytest==7.4.4",), None)
    assert second.environment == none.environment
    assert none.environment.requirements == ("pytest==8.4.2",)


def test_a_python_of_the_command_line_reaches_rows_with_text_or_null(tmp_path: Path) -> None:
    rows = [
        make_row(patch=bug_patch(), instance_id=f"r{n}") | {"environment": given}
        for n, given in enumerate([None, "", '{"install": ["flask"]}', {"python": "3.12"}])
    ]
    made = items(tmp_path, rows, "--python", "3.13")
    assert [item.environment.python for item in made] == ["3.13"] * 4
    assert made[2].environment.install == ("flask",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("e.json", "{", "e.json is not valid .json"),
        ("e.json", "[" * 100_000, "e.json is not valid .json"),
        ("e.toml", "a b", "e.toml is not valid .toml"),
        ("e.yaml", "a: [", "e.yaml is not valid .yaml"),
        ("e.json", "[]", "must hold an object: repo -> environment"),
        ("e.json", '{"a/b": {"python": "4"}}', "a/b.python: String should match"),
        ("e.json", '{"a/b": []}', "a/b: Input should be a valid dictionary"),
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="--environments") as caught:
        read_environments(tmp_path / name)
    assert message in str(caught.value)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_environments(tmp_path / "gone.json")
