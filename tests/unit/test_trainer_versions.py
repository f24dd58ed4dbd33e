"""Which versions of a trainer an adapter takes."""

from __future__ import annotations

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.trainers import versions
from hermes_queue.trainers.versions import TRAINERS, TrainerVersion, check

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
    assert "hermes_queue.trainers.mine was tested with 0.1" in caplog.text


def test_a_newer_version_that_differs_is_refused_with_what_changed(tested) -> None:
    tested(uses={ROW: ("ids", "input_ids"), ROWS_OF: ("samples",), "json:Moved": ()})
    with pytest.raises(ConfigurationError) as refused:
        check("mine")
    text = str(refused.value)
    assert "Row has no input_ids; it has advantage, branch" in text
    assert "rows_of has no samples" in text
    assert "json:Moved cannot be imported" in text
    assert text.endswith("Install 'pydantic==0.1'")


def test_a_package_that_is_not_installed_is_named_with_the_command(tested) -> None:
    tested(package="no-such-trainer", version="1.2")
    with pytest.raises(ConfigurationError, match=r"pip install 'no-such-trainer==1\.2'"):
        check("mine")


def test_an_unknown_adapter_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no adapter 'typo'; there are"):
        check("typo")
    assert all(each.version for each in TRAINERS.values())
