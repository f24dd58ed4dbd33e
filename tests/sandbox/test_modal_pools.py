"""How many sandboxes there are, what lies in them, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
import sys

import pytest
from modal_slots import acquire, age, asset, out

from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.fleet import SandboxObserver
from hermes_queue.sandbox.modal import backend as backends
from hermes_queue.sandbox.modal import box as boxes
from hermes_queue.sandbox.modal import pool as pools
from hermes_queue.sandbox.modal.pool import Pool
from hermes_queue.settings import ModalSettings


@pytest.fixture
def start(start_modal):
    """As `start_modal`."""
    return start_modal


async def alive(backend):
    return {info.sandbox_id for info in await backend.list_sandboxes(backend.labels)}


def pool_of(backend, name="default"):
    return backend._pools[name]


# --- numbers ----------------------------------------------------------------------------


async def test_slots_share_sandboxes_as_the_profile_says(start):
    backend = await start(slots=4, slots_per_sandbox=2)
    slots = await acquire(backend, 4)
    assert len({slot.sandbox_id for slot in slots}) == 2
    assert len(await alive(backend)) == 2
    uids = {await out(backend, slot, "id -u") for slot in slots}
    assert "0" not in uids


async def test_a_job_that_asks_for_it_shares_its_sandbox_with_no_other(start):
    backend = await start(slots=3)
    [shared] = await acquire(backend)
    [alone] = await acquire(backend, alone=True)
    [third] = await acquire(backend)
    assert shared.sandbox_id == third.sandbox_id != alone.sandbox_id
    renewed = await backend.renew(alone)
    assert (renewed.sandbox_id, renewed.workspace) == (alone.sandbox_id, "/workspace")
    assert backend.free_slots == 0


async def test_a_uid_is_never_used_twice_in_a_sandbox(start):
    backend = await start()
    seen = []
    for _ in range(3):
        [slot] = await acquire(backend)
        seen.append((slot.sandbox_id, await out(backend, slot, "id -u")))
        await backend.release(slot)
    assert len({box for box, _ in seen}) == 1
    assert len(set(seen)) == 3


async def test_the_minimum_runs_from_the_start_and_nothing_without_one(start):
    assert len(await alive(await start(min_sandboxes=2))) == 2
    idle = await start()
    idle.labels["worker"] += "-idle"
    assert await alive(idle) == set()


async def test_more_jobs_than_the_most_sandboxes_hold_wait(start):
    backend = await start(slots=3, slots_per_sandbox=1, max_sandboxes=2)
    slots = await acquire(backend, 2)
    waiting = asyncio.create_task(backend.acquire("t", SlotSpec()))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert len(await alive(backend)) == 2
    await backend.release(slots[0])
    assert (await waiting).sandbox_id == slots[0].sandbox_id


@pytest.mark.parametrize("turns", range(6))
async def test_a_job_that_is_cancelled_as_something_changes_waits_no_longer(turns):
    async def create(profile):
        await asyncio.Event().wait()

    pool = Pool(ModalSettings(), create, create, slots=2)
    growing, waiting = [asyncio.create_task(pool.take({})) for _ in range(2)]
    while pool._waiting < 2:
        await asyncio.sleep(0)
    pool._wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=10)
    assert waiting.cancelled()
    growing.cancel()
    await pool.stop()


async def test_idle_sandboxes_end_down_to_the_minimum(start):
    backend = await start(slots=2, slots_per_sandbox=1, min_sandboxes=1, scale_down_s=0)
    slots = await acquire(backend, 2)
    for slot in slots:
        await backend.release(slot)
    await pool_of(backend).tend()
    assert len(await alive(backend)) == 1


async def test_a_sandbox_that_is_in_use_is_not_scaled_down(start):
    backend = await start(scale_down_s=0)
    [slot] = await acquire(backend)
    await pool_of(backend).tend()
    assert await out(backend, slot, "echo alive") == "alive"


async def test_a_backend_ends_although_the_sdk_swallows_the_cancellation(start, monkeypatch):
    """As the SDK's bridge does when what it waits for ends in the moment of the cancellation."""
    monkeypatch.setattr(backends, "TEND_S", 0.01)
    backend = await start()
    tending = asyncio.Event()

    async def swallowing():
        if tending.is_set():
            await asyncio.Event().wait()
        tending.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    monkeypatch.setattr(pool_of(backend), "tend", swallowing)
    await tending.wait()
    stopping = asyncio.create_task(backend.stop())
    ended, _ = await asyncio.wait({stopping}, timeout=30)
    assert ended == {stopping}


@pytest.mark.fleet
async def test_a_sandbox_is_replaced_before_it_expires_and_ends_with_its_last_slot(start):
    backend = await start()
    [old] = await acquire(backend)
    pool_of(backend).boxes[old.sandbox_id].created -= 14_400 - 3600
    [new] = await acquire(backend)
    assert new.sandbox_id != old.sandbox_id
    assert await out(backend, old, "echo alive") == "alive"
    await backend.release(old)
    assert await alive(backend) == {new.sandbox_id}


@pytest.mark.fleet
async def test_sandboxes_are_touched_so_that_they_do_not_idle_out(start, localmodal):
    backend = await start(slots_per_sandbox=1, idle_timeout_s=100)
    tended, neglected = await acquire(backend, 2)
    pool = pool_of(backend)
    for _ in range(3):
        for slot in (tended, neglected):
            age(localmodal, slot.sandbox_id, idle_s=40)
        pool.boxes[tended.sandbox_id].touched = 0.0
        await pool.tend()
    while neglected.sandbox_id in await alive(backend):
        await asyncio.sleep(0.1)
    assert await out(backend, tended, "echo alive") == "alive"


async def test_without_its_worker_a_sandbox_idles_out(start, localmodal):
    backend = await start(idle_timeout_s=100)
    [slot] = await acquire(backend)
    assert await alive(backend) == {slot.sandbox_id}
    age(localmodal, slot.sandbox_id, idle_s=100)
    while await alive(backend):
        await asyncio.sleep(0.1)


async def test_a_lost_sandbox_is_noticed_without_a_command(start):
    heard = []

    class Listener(SandboxObserver):
        def gone(self, sandbox_id):
            heard.append(sandbox_id)

    backend = await start(min_sandboxes=1, observer=Listener())
    [lost] = await alive(backend)
    await backend._account.terminate(lost)
    pool_of(backend).boxes[lost].touched = 0.0
    await pool_of(backend).tend()
    assert heard == [lost]
    while not await alive(backend) - {lost}:
        await asyncio.sleep(0.05)


async def test_pools_of_profiles_start_when_they_are_used(start):
    backend = await start(profiles="small: {env: {SIZE: small}, slots_per_sandbox: 1}")
    assert await alive(backend) == set()
    [slot] = await acquire(backend, profile="small")
    assert await out(backend, slot, "echo $SIZE") == "small"
    assert set(backend._pools) == {"default", "small"}


def test_the_package_loads_without_the_sdk():
    code = (
        "import sys, hermes_queue.sandbox.modal as ours; "
        "sys.exit('modal' in sys.modules or not ours.BACKEND)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- images that cannot do everything -----------------------------------------------------


@pytest.mark.fleet
async def test_without_uids_every_lease_has_a_sandbox_of_its_own(start, monkeypatch, caplog):
    monkeypatch.setattr(boxes, "LAST_UID", 1 << 20)  # beyond what the server maps
    backend = await start(slots=2)
    one, other = await acquire(backend, 2)
    assert one.sandbox_id != other.sandbox_id
    assert "one slot each" in caplog.text
    assert not backend.capabilities.isolation
    assert await out(backend, one, "id -u; pwd -P") == f"0\n{one.workspace}"
    await out(backend, one, "touch x")
    renewed = await backend.renew(one)
    assert renewed.sandbox_id != one.sandbox_id
    assert await out(backend, renewed, "ls -A") == ""
    await backend.release(renewed)
    await backend.release(other)
    assert await alive(backend) == set()


@pytest.mark.fleet
async def test_slots_without_uids_share_a_sandbox_where_that_is_accepted(start, monkeypatch):
    monkeypatch.setattr(boxes, "LAST_UID", 1 << 20)
    backend = await start(slots=2, share_root=True)
    one, other = await acquire(backend, 2)
    assert one.sandbox_id == other.sandbox_id
    assert one.workspace != other.workspace
    await out(backend, one, "touch x; sleep 600 & true")
    renewed = await backend.renew(one)
    assert await out(backend, renewed, "ls -A; pgrep -fc '[s]leep 600' || true") == "0"
    assert await out(backend, other, "echo alive") == "alive"


async def test_another_python_than_the_image_has_is_named(start):
    backend = await start()
    with pytest.raises(EnvInfraError, match=r"needs Python 3\.99, image python:3\.11 has Python 3"):
        await acquire(backend, python="3.99")
    assert backend.free_slots == 4


@pytest.mark.fleet
async def test_jobs_with_other_assets_do_not_meet_where_all_slots_see_them(start):
    backend = await start(slots=3)
    first, second = asset(), asset()
    [a] = await acquire(backend, assets=(first,))
    [b] = await acquire(backend, assets=(second,))
    if pool_of(backend).boxes[a.sandbox_id].abilities.mounts:
        pytest.skip("every slot has mounts of its own here")
    assert a.sandbox_id != b.sandbox_id
    [again] = await acquire(backend, assets=(first,))
    assert again.sandbox_id == a.sandbox_id


@pytest.mark.fleet
async def test_an_idle_sandbox_gives_way_to_a_job_with_other_assets_at_the_limit(start):
    backend = await start(max_sandboxes=1)
    [a] = await acquire(backend, assets=(asset(),))
    waiting = asyncio.create_task(backend.acquire("t", SlotSpec(assets=(asset(),))))
    while not pool_of(backend)._waiting:
        await asyncio.sleep(0.02)
    assert not waiting.done()
    await backend.release(a)
    assert (await waiting).sandbox_id != a.sandbox_id


@pytest.mark.fleet
async def test_jobs_with_the_assets_at_hand_do_not_keep_others_waiting_for_ever(start, monkeypatch):
    monkeypatch.setattr(pools, "STARVED_S", 0.05)
    backend = await start(max_sandboxes=1, slots_per_sandbox=2)
    common, rare = SlotSpec(assets=(asset(),)), SlotSpec(assets=(asset(),))
    first, second = [await backend.acquire("t", common) for _ in range(2)]
    starving = asyncio.create_task(backend.acquire("t", rare))
    while not pool_of(backend).boxes[first.sandbox_id].closing:
        await asyncio.sleep(0.02)
    # From now on waiters only wake in turn, and the one who came later is first in line.
    monkeypatch.setattr(pools, "STARVED_S", 60.0)
    later = asyncio.create_task(backend.acquire("t", common))
    while pool_of(backend)._waiting < 2:
        await asyncio.sleep(0.02)
    await backend.release(first)
    assert pool_of(backend)._waiting == 2
    assert len(pool_of(backend).boxes) == 1
    await backend.release(second)
    served = await starving
    assert served.sandbox_id != first.sandbox_id
    assert not later.done()
    await backend.release(served)
    assert (await later).sandbox_id not in (first.sandbox_id, served.sandbox_id)


@pytest.mark.fleet
async def test_a_snapshot_that_modal_has_no_more_is_built_again(start, localmodal, cache):
    backend = await start()
    spec = asset("date +%s%N >stamp")
    before = await backend.read_asset(spec, "stamp")
    profile = backend.settings
    note = backend._assets._note(profile, spec)
    note.write_text('{"image_id": "im-0123456789abcdefghijkl", "made": 9e9}')
    other = await start()
    assert await other.read_asset(spec, "stamp") != before


@pytest.mark.fleet
async def test_build_sandboxes_have_network_and_slots_have_none(start):
    backend = await start()
    spec = asset("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' >interfaces; env >env")
    interfaces = (await backend.read_asset(spec, "interfaces")).decode().split()
    [slot] = await acquire(backend)
    inside = (await out(backend, slot, "tail -n +3 /proc/net/dev | cut -d: -f1")).split()
    assert inside == ["lo"]
    assert interfaces != ["lo"]


async def test_what_is_in_use_says_so_to_the_ledger(start):
    heard = []

    class Listener(SandboxObserver):
        async def created(self, sandbox_id, labels):
            heard.append(("created", sandbox_id))

        def leased(self, slot):
            heard.append(("leased", slot.slot_id))

        def released(self, slot_id):
            heard.append(("released", slot_id))

        def gone(self, sandbox_id):
            heard.append(("gone", sandbox_id))

    backend = await start(observer=Listener())
    [slot] = await acquire(backend)
    renewed = await backend.renew(slot)
    await backend.stop()
    assert heard == [
        ("created", slot.sandbox_id),
        ("leased", slot.slot_id),
        ("released", slot.slot_id),
        ("leased", renewed.slot_id),
        ("released", renewed.slot_id),
        ("gone", slot.sandbox_id),
    ]
    assert dataclasses.replace(renewed, slot_id="") == dataclasses.replace(
        slot, slot_id="", workspace=renewed.workspace
    )
