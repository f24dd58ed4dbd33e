"""The adapter of Tinker where its SDK is not installed."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_plugins.trainers import tinker as training
from hermes_plugins.trainers import versions
from hermes_plugins.trainers.tinker import FILE_NAME, SavedState, newest_state, train
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.policy import version_number


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


async def test_an_outage_of_redis_delays_the_naming_of_weights_only(monkeypatch) -> None:
    monkeypatch.setattr(training, "_TAKE_S", 0.0)
    answers = iter([RedisUnavailable("away"), 7])
    named: list[str] = []

    def numbered(step: int) -> int:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    def published(step: int) -> int:
        raise RedisUnavailable("away again")

    async def save_weights_for_sampler(name: str) -> None:
        named.append(name)

    feed: Any = SimpleNamespace(numbered=numbered, published=published)
    client = SimpleNamespace(save_weights_for_sampler=save_weights_for_sampler)
    await training._publish(feed, client, 3, None)
    assert named == ["step-7"]
