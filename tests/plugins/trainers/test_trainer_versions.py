"""Which versions of a trainer an adapter takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes_plugins.trainers import versions
from hermes_plugins.trainers.versions import TRAINERS, TrainerVersion, check
from hermes_queue.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
ROW = "hermes_queue.trainers.rows:Row"
ROWS_OF = "hermes_queue.trainers.rows:rows_of"


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch):
    """Puts a package into the table, as what an adapter named `mine` uses."""

    def put(package: str = "pydantic", version: str = "0.1", **more) -> None:
        monkeypatch.setattr(
            versions, "TRAINERS", {"mine": TrainerVersion(package, version, **more)}
        )

    return put


def test_a_newer_version_with_the_same_fields_is_taken_with_a_warning(tested, caplog) -> None:
    tested(uses={ROW: ("ids", "mask"), ROWS_OF: ("group", "temperature")})
    check("mine")
    assert "hermes_plugins.trainers.mine was tested with 0.1" in caplog.text


def test_a_newer_version_that_differs_is_refused_with_what_changed(tested) -> None:
    tested(uses={ROW: ("ids", "input_ids"), ROWS_OF: ("samples",), "json:Moved": ()})
    with pytest.raises(ConfigurationError) as refused:
        check("mine")
    text = str(refused.value)
    assert "Row has no input_ids; it has advantage, branch" in text
    assert "rows_of has no samples" in text
    assert "json:Moved cannot be imported" in text
    assert text.endswith("Install 'pydantic==0.1'")


def test_parameters_of_a_constructor_count_as_fields(tested) -> None:
    tested(uses={"hermes_queue.trainers.journal:StepJournal": ("directory", "add", "folder")})
    with pytest.raises(ConfigurationError, match="StepJournal has no folder; it has add"):
        check("mine")


def test_a_package_that_is_not_installed_is_named_with_the_command(tested) -> None:
    tested(package="no-such-trainer", version="1.2")
    with pytest.raises(ConfigurationError, match=r"pip install 'no-such-trainer==1\.2'"):
        check("mine")


def test_an_unknown_adapter_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no adapter 'typo'; there are"):
        check("typo")
    assert all(each.version for each in TRAINERS.values())


def test_the_documented_versions_are_those_of_the_table() -> None:
    page = (ROOT / "docs" / "plugins" / "trainers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    assert {name: (package, version) for name, package, version in rows} == {
        name: (each.package, each.version) for name, each in TRAINERS.items()
    }
    assert [name for name, _, _ in rows] == sorted(TRAINERS) == list(TRAINERS)


def test_the_environments_of_the_tests_have_the_versions_of_the_table() -> None:
    locked = {
        found[1]: found[2]
        for path in sorted((Path(__file__).parent / "requirements").glob("*.txt"))
        for found in re.finditer(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE)
        if found[1] in {each.package for each in TRAINERS.values()}
    }
    tested = {each.package: each.version for each in TRAINERS.values()}
    assert locked == {package: tested[package] for package in locked}
    assert locked.keys() >= {"trl"}
