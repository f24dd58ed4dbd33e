"""The reaper ends what dead workers left at a provider, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from hermes_queue.errors import SandboxError
from hermes_queue.ledger.fleet.sandboxes import Sandboxes, SandboxRecord
from hermes_queue.sandbox.base import Capabilities, SandboxInfo, SlotSpec
from hermes_queue.sandbox.fleet import Fleet, SandboxObserver
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.settings import LocalSandboxSettings, SandboxSettings
from workers.upkeep.reaper import Reaper

SETTINGS = SandboxSettings(backend="far", reap_s=0.001, reap_grace_s=0)


class Provider:
    """An account somewhere, which several deployments share."""

    capabilities = Capabilities(isolation=True, remote=True)

    def __init__(self) -> None:
        self.boxes: dict[str, SandboxInfo] = {}
        self.stuck: set[str] = set()

    def add(self, name, *, deployment, worker):
        labels = {"deployment": deployment, "worker": worker}
        self.boxes[name] = SandboxInfo(name, labels, 1.0)

    async def list_sandboxes(self, labels):
        return [box for box in self.boxes.values() if labels.items() <= box.labels.items()]

    async def terminate(self, sandbox_id):
        if sandbox_id in self.stuck:
            raise SandboxError("the provider says no")
        self.boxes.pop(sandbox_id, None)


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def reaper(ledger, provider):
    return Reaper(provider, ledger, "ours", SETTINGS)


async def test_only_sandboxes_of_dead_workers_of_this_deployment_end(ledger, provider, reaper):
    ledger.beat("living", {}, ttl_s=60)
    provider.add("a", deployment="ours", worker="living")
    provider.add("b", deployment="ours", worker="dead")
    provider.add("c", deployment="theirs", worker="dead")
    assert await reaper.turn() == ["b"]
    assert sorted(provider.boxes) == ["a", "c"]


async def test_one_that_cannot_be_ended_does_not_keep_the_others(provider, reaper):
    provider.stuck = {"a"}
    for name in "ab":
        provider.add(name, deployment="ours", worker="dead")
    assert await reaper.turn() == ["b"]


async def test_a_record_without_a_sandbox_is_dropped_when_its_lease_has_ended(ledger, reaper):
    sandboxes = Sandboxes(ledger)
    sandboxes.renew([SandboxRecord("old", "far", "h", 1.0)], lease_s=-1)
    sandboxes.renew([SandboxRecord("new", "far", "h", 1.0)], lease_s=60)
    sandboxes.renew([SandboxRecord("other", "local", "h", 1.0)], lease_s=-1)
    await reaper.turn()
    assert sorted(r.sandbox_id for r in sandboxes.all()) == ["new", "other"]


async def test_it_ends_though_the_providers_client_loses_a_cancellation(provider, reaper):
    asked = []

    async def list_sandboxes(labels):
        asked.append(labels)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(asked) == 1:
                raise SandboxError("the connection was closed") from None
            raise

    provider.list_sandboxes = list_sandboxes
    reaper.start()
    while not asked:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        await reaper.stop()


async def test_an_observer_hears_of_a_sandbox_that_somebody_else_ended(tmp_path):
    heard = []

    class Listener(SandboxObserver):
        async def created(self, sandbox_id, labels):
            heard.append(("created", sandbox_id))

        def gone(self, sandbox_id):
            heard.append(("gone", sandbox_id))

    settings = LocalSandboxSettings(isolation="none")
    made = [
        LocalBackend(settings, slots=1, cache=tmp_path, fleet=Fleet(listener))
        for listener in (Listener(), SandboxObserver())
    ]
    await made[0].start()
    [(_, first)] = heard
    await made[1].terminate(first)
    slot = await made[0].acquire("t", SlotSpec())
    await made[0].stop()
    assert heard[1:] == [("gone", first), ("created", slot.sandbox_id), ("gone", slot.sandbox_id)]
