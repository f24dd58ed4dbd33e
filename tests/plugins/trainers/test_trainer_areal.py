"""The adapter of AReaL where it is not installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from trainer_groups import group_of

from hermes_plugins.trainers import versions
from hermes_plugins.trainers.areal import QueueWorkflow, _versions
from hermes_queue.errors import ConfigurationError
from hermes_queue.trainers.rows import rows_of


def test_a_workflow_without_areal_is_refused_with_the_command_to_install_it(monkeypatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(versions, "version", absent)
    with pytest.raises(ConfigurationError, match=r"pip install 'areal==1\.0\.4'"):
        QueueWorkflow(None)  # type: ignore[arg-type]


def test_each_token_has_the_version_that_sampled_it_in_the_trainers_numbers() -> None:
    group = group_of("i").group
    first = group.members[0]
    turns = [
        turn.model_copy(update={"policy_version": f"step-{version}"})
        for turn, version in zip(first.turns, (12, 14), strict=True)
    ]
    member = first.model_copy(update={"turns": tuple(turns)})
    group = group.model_copy(update={"members": (member, *group.members[1:])})
    row = rows_of(group, sequences="longest")[0]
    context = -1
    expected = [*[context] * 3, 2, 2, *[context] * 4, 4, 4, 4]
    assert _versions(row, unknown=0, offset=10) == expected
    older = [*[context] * 3, 0, 0, *[context] * 4, 1, 1, 1]
    assert _versions(row, unknown=0, offset=13) == older
