"""What adapters take of a feed: unfit groups become dead letters, left out tokens are counted."""

from __future__ import annotations

import sys
from abc import ABC
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from numbered_groups import publish_groups
from stream_groups import publish
from trainer_groups import CASES, publish_group

from hermes_plugins.trainers import areal, skyrl, trl_callback
from hermes_queue.ledger.policy import set_version, version_of


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL and AReaL count as installed."""
    module: Any = ModuleType("areal.api.workflow_api")
    module.RolloutWorkflow = ABC
    monkeypatch.setitem(sys.modules, "areal.api.workflow_api", module)
    for adapter in (areal, skyrl):
        monkeypatch.setattr(adapter, "check", lambda name: None)


def publish_one_of_two_fit(ledger: Any) -> None:
    publish(ledger, "unfit", tokens=False)
    publish_groups(ledger, 1)


async def test_skyrl_gets_the_fit_ones(ledger, feed):
    publish_one_of_two_fit(ledger)
    generator = skyrl.QueueGenerator(feed(), temperature=1.0)
    slots = [SimpleNamespace(instance_id="slot")] * 2
    about = SimpleNamespace(training_phase="train", global_step=1)
    output = await generator.generate({"batch_metadata": about, "trajectory_ids": slots})
    assert output["prompt_token_ids"] == [[0, 0], [0, 1]]
    assert ledger.client.xlen("hq:dead") == 1


def test_areal_gets_the_fit_ones(ledger, feed):
    publish_one_of_two_fit(ledger)
    workflow = areal.QueueWorkflow(feed())
    workflow._fill()
    assert [group.instance_id for group in workflow._ready] == ["i0"]
    assert ledger.client.xlen("hq:dead") == 1


async def by_skyrl(trainer: Any) -> None:
    generator = skyrl.QueueGenerator(trainer)
    slots = [SimpleNamespace(instance_id="slot")] * 4
    about = SimpleNamespace(training_phase="train", global_step=1)
    await generator.generate({"batch_metadata": about, "trajectory_ids": slots})


async def by_areal(trainer: Any) -> None:
    areal.QueueWorkflow(trainer)._fill()


async def by_trl(trainer: Any) -> None:
    trl_callback.take_rows(trainer, 5.0)


@pytest.mark.parametrize("take", [by_skyrl, by_areal, by_trl])
async def test_tokens_outside_the_longest_sequences_are_counted_and_warned_of(
    ledger, feed, caplog, take
):
    publish_group(ledger, CASES["two_sequences"].group)
    trainer = feed(group_size=4)
    await take(trainer)
    assert trainer.counts.untrained_tokens == 4 * 5
    assert "20 of the 40 tokens that were sampled" in caplog.text


async def test_areal_counts_versions_from_its_own_after_a_resume(ledger, feed, monkeypatch):
    monkeypatch.setattr(areal, "tensors", lambda group, **given: given)
    publish_groups(ledger, 2)
    set_version(ledger, "run", 40)
    workflow = areal.QueueWorkflow(feed())
    engine = SimpleNamespace(get_version=lambda: 7)
    first = await workflow.arun_episode(engine, {})
    assert version_of(ledger, "run") == 41
    assert first == {"number": 1, "unknown": 7, "offset": 34}
    assert workflow.published(8) == 42
    assert (await workflow.arun_episode(engine, {}))["offset"] == 34
