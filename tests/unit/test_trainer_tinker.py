"""The adapter of Tinker where its SDK is not installed."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.policy import version_number
from hermes_queue.trainers import versions
from hermes_queue.trainers.tinker import FILE_NAME, SavedState, newest_state, train


def test_the_state_to_go_on_from_is_read_from_the_directory_of_the_journal(tmp_path) -> None:
    assert newest_state(tmp_path) is None
    file = tmp_path / FILE_NAME
    file.write_text('{"step": 4, "path": "tinker://s:train:0/weights/step-4"}')
    assert newest_state(tmp_path) == SavedState(4, "tinker://s:train:0/weights/step-4")
    for damaged in ("", "[]", '{"step": 4}', '{"step": null, "path": "x"}'):
        file.write_text(damaged)
        with pytest.raises(ConfigurationError, match="names no saved state"):
            newest_state(tmp_path)


def test_workers_read_the_policy_version_from_a_sampler_path() -> None:
    assert version_number("tinker://session-1:train:0/sampler_weights/step-12") == 12


def test_training_without_the_sdk_is_refused_with_the_command_to_install_it(monkeypatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(versions, "version", absent)
    coroutine = train(None, None, resumed=None, steps=1, groups_per_step=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"pip install 'tinker==0\.38\.0'"):
        asyncio.run(coroutine)
