"""What a killed worker left running at Modal, and who uses it on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import modal
import modal_predecessor
import pytest
from modal_predecessor import ASSET

from hermes_queue.ledger.fleet.sandboxes import Sandboxes
from hermes_queue.sandbox.base import ExecutionRequest, SlotSpec
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.sandbox.predecessors import LifeLocks
from hermes_queue.settings import ModalSettings
from workers.upkeep.inventory import Inventory

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="slots without uids of their own cannot be taken over"
)
ASSETS = SlotSpec(assets=(ASSET,))
DIFFERENCES = (
    {"reattach": False},
    {"env": {"NAME": "value"}},
    {"lifetime_s": 5000},
    {"labels": {"deployment": "another"}},
)


@pytest.fixture
def predecessor(redis_server, localmodal, cache):
    """Start a worker's backend with two slots in one sandbox; the process and its facts."""
    started = []

    def start(worker="old", **settings):
        script = [sys.executable, modal_predecessor.__file__, redis_server.url, str(cache), worker]
        process = subprocess.Popen([*script, json.dumps(settings)], stdout=subprocess.PIPE)
        started.append(process)
        return process, json.loads(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def killed(predecessor):
    """The same, killed by now; its facts."""

    def start(**settings):
        process, facts = predecessor(**settings)
        process.kill()
        process.wait()
        return facts

    return start


@pytest.fixture
async def start(ledger, localmodal, cache):
    """A worker's backend; stopped after the test."""
    started = []

    async def make(worker="new", *, labels=None, inventory=None, **settings):
        inventory = inventory or Inventory(ledger, "modal")
        backend = ModalBackend(
            ModalSettings(creates_per_s=1000.0, **settings),
            slots=2,
            cache=cache,
            labels={"worker": worker, **(labels or {})},
            observer=inventory,
            predecessors=inventory,
        )
        started.append(backend)
        await backend.start()
        return backend

    yield make
    for backend in started:
        await backend.stop()


async def out(backend, slot, command):
    [result] = await backend.execute_batch([ExecutionRequest(slot, command)])
    assert not isinstance(result, Exception), result
    return result.stdout.decode().strip()


async def as_root(sandbox_id, command):
    sandbox = await modal.Sandbox.from_id.aio(sandbox_id)
    process = await sandbox.exec.aio("bash", "-c", command, timeout=30)
    return (await process.stdout.read.aio()).strip()


# --- taken over -----------------------------------------------------------------------------


async def test_the_sandbox_of_a_killed_worker_is_used_on(killed, start, localmodal, ledger):
    old = killed()
    backend = await start()
    slot = await backend.acquire("t", ASSETS)
    assert slot.sandbox_id == old["sandbox_id"]
    assert localmodal.running() == [old["sandbox_id"]]
    records = {record.sandbox_id: record for record in Sandboxes(ledger).all()}
    assert records[old["sandbox_id"]].worker == "new"
    [info] = await backend.list_sandboxes({"worker": "new"})
    assert info.sandbox_id == old["sandbox_id"]


async def test_nothing_of_the_dead_workers_slots_is_left(killed, start):
    old = killed()
    backend = await start(min_sandboxes=1)
    uids = "|".join(old["uids"])
    processes = f"grep -lE '^Uid:[[:space:]]({uids})[[:space:]]' /proc/[0-9]*/status"
    assert await as_root(old["sandbox_id"], processes) == ""
    files = (
        f"find / -xdev \\( -uid {old['uids'][0]} -o -uid {old['uids'][1]} \\) -not -path '/proc/*'"
    )
    assert await as_root(old["sandbox_id"], files) == ""
    assert await as_root(old["sandbox_id"], "ls /.hq/slots") == ""
    slot = await backend.acquire("t", ASSETS)
    assert await out(backend, slot, "id -u") not in old["uids"]
    assert await out(backend, slot, "ls -A . /tmp /var/tmp /dev/shm | grep -v :") == ""


async def test_assets_that_were_mounted_stay_and_are_not_mounted_again(killed, start, localmodal):
    killed()
    backend = await start()
    before = localmodal.faults.calls["TaskMountDirectory"]
    slot = await backend.acquire("t", ASSETS)
    assert await out(backend, slot, f"cat {ASSET.mount}/file") == "built"
    assert localmodal.faults.calls["TaskMountDirectory"] == before


async def test_it_ends_with_the_worker_that_took_it_over(killed, start, localmodal, ledger):
    old = killed()
    inventory = Inventory(ledger, "modal")
    backend = await start(inventory=inventory, min_sandboxes=1)
    assert len(localmodal.running()) == 1
    await backend.stop()
    await asyncio.to_thread(inventory.renew, ledger)
    assert localmodal.running() == []
    assert old["sandbox_id"] not in {record.sandbox_id for record in Sandboxes(ledger).all()}


async def test_of_two_workers_that_start_at_once_one_gets_it(killed, start, localmodal):
    old = killed()
    backends = await asyncio.gather(start("first", min_sandboxes=0), start("second"))
    slots = await asyncio.gather(*(b.acquire("t", ASSETS) for b in backends))
    assert [slot.sandbox_id for slot in slots].count(old["sandbox_id"]) == 1
    assert len(localmodal.running()) == 2


async def test_it_can_be_taken_over_a_second_time(killed, predecessor, start):
    old = killed()
    heir, facts = predecessor("heir")
    assert facts["sandbox_id"] == old["sandbox_id"]
    assert not set(facts["uids"]) & set(old["uids"])
    heir.kill()
    heir.wait()
    slot = await (await start()).acquire("t", ASSETS)
    assert slot.sandbox_id == old["sandbox_id"]


# --- left alone -----------------------------------------------------------------------------


async def test_a_living_neighbours_sandbox_is_never_taken(predecessor, start, ledger):
    _, theirs = predecessor()
    # Not even when Redis has lost sight of the neighbour for longer than its lease.
    ledger.client.zadd("hq:sandboxes", {theirs["sandbox_id"]: 1})
    slot = await (await start()).acquire("t", ASSETS)
    assert slot.sandbox_id != theirs["sandbox_id"]
    [record] = [r for r in Sandboxes(ledger).all() if r.sandbox_id == theirs["sandbox_id"]]
    assert record.worker == "old"


async def test_what_differs_in_anything_is_left_to_the_reaper(killed, start, ledger):
    old = killed()
    for number, difference in enumerate(DIFFERENCES):
        slot = await (await start(f"w{number}", **difference)).acquire("t", ASSETS)
        assert slot.sandbox_id != old["sandbox_id"], difference
    records = {record.sandbox_id: record for record in Sandboxes(ledger).all()}
    assert records[old["sandbox_id"]].worker == "old"
    assert (await (await start("w")).acquire("t", ASSETS)).sandbox_id == old["sandbox_id"]


async def test_one_of_another_host_is_left_alone(killed, start, ledger):
    old = killed()
    key = f"hq:sandbox:{old['sandbox_id']}"
    ledger.client.set(key, json.dumps({**json.loads(ledger.client.get(key)), "host": "elsewhere"}))
    slot = await (await start()).acquire("t", ASSETS)
    assert slot.sandbox_id != old["sandbox_id"]


async def test_one_that_carries_anothers_labels_at_modal_is_not_touched(killed, start, localmodal):
    old = killed()
    sandbox = await modal.Sandbox.from_id.aio(old["sandbox_id"])
    await sandbox.set_tags.aio({**await sandbox.get_tags.aio(), "worker": "somebody"})
    slot = await (await start()).acquire("t", ASSETS)
    assert slot.sandbox_id != old["sandbox_id"]
    assert old["sandbox_id"] in localmodal.running()


async def test_one_without_enough_of_its_lifetime_left_is_ended(killed, start, localmodal):
    old = killed(lifetime_s=4000, lease_s=3600)
    sandbox = await modal.Sandbox.from_id.aio(old["sandbox_id"])
    tags = await sandbox.get_tags.aio()
    await sandbox.set_tags.aio({**tags, "created": str(int(tags["created"]) - 500)})
    slot = await (await start(lifetime_s=4000, lease_s=3600)).acquire("t", ASSETS)
    assert localmodal.running() == [slot.sandbox_id] != [old["sandbox_id"]]


async def test_one_that_does_not_answer_is_replaced(killed, start, localmodal, ledger, monkeypatch):
    monkeypatch.setattr("hermes_queue.sandbox.modal.inheritance.ANSWER_S", 1.0)
    old = killed()
    localmodal.lose_worker(old["sandbox_id"])
    inventory = Inventory(ledger, "modal")
    slot = await (await start(inventory=inventory)).acquire("t", ASSETS)
    assert slot.sandbox_id != old["sandbox_id"]
    await asyncio.to_thread(inventory.renew, ledger)
    assert old["sandbox_id"] not in {record.sandbox_id for record in Sandboxes(ledger).all()}


async def test_one_whose_asset_is_not_whole_is_replaced(killed, start):
    old = killed()
    await as_root(old["sandbox_id"], "mkdir /.hq/assets/test-half")
    slot = await (await start()).acquire("t", ASSETS)
    assert slot.sandbox_id != old["sandbox_id"]


# --- who is dead ----------------------------------------------------------------------------


def hold_in_a_process(directory, worker):
    hold = (
        "import sys, pathlib, hermes_queue.sandbox.predecessors as p; "
        "p.LifeLocks(pathlib.Path(sys.argv[1])).hold(sys.argv[2]); print(1, flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hold, str(directory), worker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    return process


def test_a_worker_is_dead_once_it_is_killed_and_not_before(tmp_path):
    locks = LifeLocks(tmp_path)
    with hold_in_a_process(tmp_path, "w") as process:
        assert not locks.is_dead("w")
        process.kill()
        process.wait()
        assert locks.is_dead("w")
        assert not locks.is_dead("never heard of")


def test_a_lock_of_an_earlier_boot_or_another_kernel_tells_nothing(tmp_path):
    locks = LifeLocks(tmp_path)
    with hold_in_a_process(tmp_path, "w") as process:
        process.kill()
        process.wait()
    [path] = tmp_path.glob("*.lock")
    path.write_text("another-boot")
    assert not locks.is_dead("w")


def test_locks_of_dead_workers_that_left_nothing_are_dropped(tmp_path):
    locks = LifeLocks(tmp_path)
    living = hold_in_a_process(tmp_path, "living")
    for worker in ("named", "done"):
        with hold_in_a_process(tmp_path, worker) as process:
            process.kill()
    locks.tidy({"named"})
    assert len(list(tmp_path.glob("*.lock"))) == 2
    assert locks.is_dead("named")
    assert not locks.is_dead("done")
    with living:
        living.kill()
