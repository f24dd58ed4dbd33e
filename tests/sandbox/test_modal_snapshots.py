"""Copies of the files of Modal's slots: where they lie, who gets at them, when they end."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest
from modal_slots import answer, out

from hermes_queue.errors import NoSnapshot
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.modal import box

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may map a range of uids everywhere"
)
PATHS = 'echo "$PWD $HOME $TMPDIR"'
NAMES = "/tmp/names"
DEEP = "import os; [(os.mkdir('n' * 250), os.chdir('n' * 250)) for _ in range(17)]"


@pytest.fixture
async def hosts(start_modal):
    """Two workers, whose slots share a sandbox of two."""
    return [await start_modal(slots=4, slots_per_sandbox=2, snapshot_max_mb=2) for _ in range(2)]


async def lease(backend, trajectory_id="t"):
    return await backend.acquire(trajectory_id, SlotSpec())


def images(localmodal):
    return [name for name, image in store(localmodal).images.items() if image.files]


def store(localmodal):
    return localmodal._background.server.store


async def as_root(backend, slot, command):
    process = await backend._held[slot.slot_id].box.sandbox.exec.aio("bash", "-c", command)
    return (await process.stdout.read.aio()).strip()


async def test_another_worker_restores_the_files_at_the_paths_that_the_agent_knows(
    hosts, localmodal
):
    one, other = hosts
    known = set(images(localmodal))  # of tests before: the server is the process's
    neighbour, slot = await lease(one, "another"), await lease(one)
    before = await out(one, slot, f"{PATHS}; echo 1 >f; mkdir {NAMES}; echo 2 >{NAMES}/f; {PATHS}")
    localmodal.faults.inject("TaskSnapshotDirectory", delay_s=0.5)
    copying = asyncio.create_task(one.snapshot(slot))
    while not (kept := await as_root(one, slot, "cd /.hq/kept; ls -d */files")):
        pass
    spied = await answer(one, neighbour, f"ls /.hq/kept; cat /.hq/kept/{kept}")
    assert (spied.stdout, spied.exit_code) == (b"", 1), "a neighbour sees the copy"
    snapshot = await copying
    assert await as_root(one, slot, "ls /.hq/kept") == ""
    await one.release(slot)
    heir = await lease(other)
    await other.restore(heir, snapshot.snapshot_id)
    assert await out(other, heir, f"{PATHS}; {PATHS}; cat f {NAMES}/f") == f"{before}\n1\n2"
    assert await as_root(other, heir, "ls /.hq/kept") == ""
    [image] = set(images(localmodal)) - known
    await other.drop_snapshot(image)
    await other.drop_snapshot(image)
    assert set(images(localmodal)) == known
    with pytest.raises(NoSnapshot, match="does not have"):
        await other.restore(heir, image)


@pytest.mark.exhaustive
async def test_what_cannot_be_brought_back_as_it_was_is_not(hosts, localmodal):
    one, other = hosts
    known = set(images(localmodal))
    slot, twin = await lease(one), await lease(one)
    assert await out(one, slot, PATHS) != await out(one, twin, PATHS)
    await out(one, slot, f"echo 1 >{NAMES}; chmod 777 ~")
    snapshot = await one.snapshot(slot)
    with pytest.raises(NoSnapshot, match="other paths"):
        await one.restore(twin, snapshot.snapshot_id)
    heir, neighbour = await lease(other), await lease(other, "another")
    await out(other, neighbour, f"mkdir {NAMES}; chmod 777 {NAMES}")
    with pytest.raises(NoSnapshot, match="same names"):
        await other.restore(heir, snapshot.snapshot_id)
    for spoil, why in (
        (f"touch {NAMES}/mine", "directories of other slots"),
        (f"rm {NAMES}/mine; head -c 4000000 /dev/urandom >large", "larger than"),
        (f'rm large; python3 -c "{DEEP}"', "4000 bytes"),
        ("rm -r nn*; ipcmk -Q", "System V"),
    ):
        await out(other, heir, spoil)
        with pytest.raises(NoSnapshot, match=why):
            await other.snapshot(heir)
    assert await as_root(other, heir, "ls /.hq/kept") == ""
    assert set(images(localmodal)) - known == {snapshot.snapshot_id}


def test_of_more_names_than_a_copy_can_have_none_is_left_out_silently(tmp_path):
    script = Path(box.__file__).with_name("slot.sh").read_text(encoding="utf-8")
    [function] = re.findall(r"^loose_files\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
    function = function.replace("/dev/shm", "slot/shm")  # this host's may have files
    for directory in ("tmp", "var/tmp", "slot/shm"):
        (tmp_path / directory).mkdir(parents=True)
    for number in range(3820):  # a little more than 1 MB of names, with the places before them
        (tmp_path / "tmp" / f"{number:0255}").touch()
    command = f"processes_of() {{ :; }}; {function}; loose_files slot {os.getuid()} list 60"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    assert ran.stdout == b"too many files lie in /tmp\n"
