"""Adapters whose feed was given no check: unfit groups become dead letters, the others come."""

from __future__ import annotations

import sys
from abc import ABC
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from numbered_groups import publish_groups
from stream_groups import publish

from hermes_queue.trainers import areal, skyrl


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
