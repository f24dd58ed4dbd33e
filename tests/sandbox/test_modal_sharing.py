"""What the fleet shares of Modal, and what slots and graded jobs must not see."""

from __future__ import annotations

import modal
import pytest
from modal_slots import acquire, asset, out

from hermes_queue.errors import SandboxRejected
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.snapshots import FleetSnapshots
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.modal import box as boxes
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.settings import ModalSettings


@pytest.fixture
def start(start_modal):
    """As `start_modal`."""
    return start_modal


# --- what the fleet shares, and what slots must not see -----------------------------------


@pytest.fixture
def hosts(localmodal, tmp_path, redis_server):
    """Backends of two hosts, which share nothing but Redis and the Modal app."""
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)

        def make(name):
            return ModalBackend(
                ModalSettings(creates_per_s=1000.0),
                slots=1,
                cache=tmp_path / name,
                fleet=Fleet(snapshots=FleetSnapshots(ledger)),
            )

        yield make("one"), make("other")


async def started(backend):
    await backend.start()
    return backend


@pytest.mark.fleet
async def test_another_host_starts_from_the_snapshot_that_the_first_has_made(hosts):
    spec = asset("date +%s%N >stamp")
    stamps = []
    for backend in hosts:
        await backend.start()
        [slot] = await acquire(backend, assets=(spec,))
        stamps.append(await out(backend, slot, f"cat {spec.mount}/stamp"))
        await backend.stop()
    assert stamps[0] == stamps[1]


@pytest.mark.fleet
async def test_a_shared_snapshot_that_modal_has_no_more_is_built_and_shared_again(hosts):
    one, other = [await started(backend) for backend in hosts]
    spec = asset("date +%s%N >stamp")
    note = one._assets._note(one.settings, spec).stem
    await one._assets._fleet.save(one._account.app_id, note, "im-0123456789abcdefghijkl", ttl_s=60)
    stamps = [await backend.read_asset(spec, "stamp") for backend in (one, other)]
    assert stamps[0] == stamps[1]
    for backend in hosts:
        await backend.stop()


PLACES = "/opt/tool/hq_parse/__init__.py /opt/tool/hq_six.py"
PACKAGE = f"mkdir -p /opt/tool/hq_parse && echo x=1 | tee {PLACES}"
LOOK = f"cat {PLACES} 2>/dev/null || true"


@pytest.fixture
async def image_with_packages(localmodal):
    """Id of an image in which two packages lie beside what a program needs."""
    app = await modal.App.lookup.aio("tests", create_if_missing=True)
    box = await modal.Sandbox.create.aio(app=app, image=modal.Image.debian_slim())
    process = await box.exec.aio("bash", "-c", PACKAGE)
    assert await process.wait.aio() == 0
    return (await box.snapshot_filesystem.aio()).object_id


async def test_what_a_job_is_about_is_concealed_in_the_image(start, image_with_packages):
    backend = await start(image=image_with_packages)
    [open_] = await acquire(backend)
    assert await out(backend, open_, LOOK) == "x=1\nx=1"
    [slot] = await acquire(backend, conceal=("hq_parse", "hq_six"))
    assert await out(backend, slot, LOOK) == ""
    assert await out(backend, slot, "python3 -c 'import json.tool' && echo whole") == "whole"


async def test_what_cannot_be_concealed_is_refused_with_its_place(
    start, image_with_packages, monkeypatch
):
    monkeypatch.setattr(boxes, "LAST_UID", 1 << 20)  # slots are root, who sees everything
    backend = await start(image=image_with_packages)
    with pytest.raises(SandboxRejected, match=r"the subject of the job, at /opt/tool/hq_parse: "):
        await acquire(backend, conceal=("hq_parse",))
    assert backend.free_slots == 4


async def interfaces(backend, slot):
    return (await out(backend, slot, "tail -n +3 /proc/net/dev | cut -d: -f1")).split()


async def test_a_job_with_network_is_graded_in_a_sandbox_without(start):
    backend = await start(profiles="web: {network: open}")
    [slot] = await acquire(backend, profile="web")
    assert await interfaces(backend, slot) != ["lo"]
    graded = await backend.renew(slot)
    assert await interfaces(backend, graded) == ["lo"]
    assert backend.free_slots == 3
    again = await backend.renew(graded)
    assert again.sandbox_id == graded.sandbox_id
    [other] = await acquire(backend, profile="web")
    assert other.sandbox_id == slot.sandbox_id


async def test_grading_may_keep_the_network_where_the_profile_says_so(start):
    backend = await start(profiles="web: {network: open, grading_network: same}")
    [slot] = await acquire(backend, profile="web")
    graded = await backend.renew(slot)
    assert graded.sandbox_id == slot.sandbox_id
    assert await interfaces(backend, graded) != ["lo"]
