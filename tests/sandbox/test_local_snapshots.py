"""Snapshots on the host's disk: bounded, never restored unless whole."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from slot_bench import SlotBench

from hermes_queue.errors import NoSnapshot
from hermes_queue.sandbox.local import snapshots


@pytest.fixture
async def local(make_bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_SNAPSHOT_MAX_MB", "3")
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_SNAPSHOTS_MB", "4")
    return await make_bench("local", slots=2)


def files(cache: Path) -> list[Path]:
    return sorted(Path(cache, "snapshots").iterdir())


async def test_neither_one_snapshot_nor_all_of_them_take_more_than_allowed(
    local: SlotBench, cache: Path
) -> None:
    slot = await local.slot()
    backend = local.backend
    await local.out(slot, "head -c 4000000 /dev/urandom >large")
    with pytest.raises(NoSnapshot, match="larger than a snapshot may be"):
        await backend.snapshot(slot)
    assert files(cache) == [], "nothing is left of it"
    await local.out(slot, "truncate -s 2000000 large; truncate -s 1T sparse")
    kept = [await backend.snapshot(slot) for _ in range(2)]
    with pytest.raises(NoSnapshot, match="no room"):
        await backend.snapshot(slot)
    await backend.drop_snapshot(kept[0].snapshot_id)
    await backend.snapshot(slot)
    for each in await backend.snapshots():
        await backend.drop_snapshot(each.snapshot_id)
    assert files(cache) == []


async def test_a_disk_that_takes_no_description_leaves_nothing(
    local: SlotBench, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = await local.slot()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(snapshots.LocalSnapshots, "_describe", full)
        with pytest.raises(NoSnapshot, match="No space left"):
            await local.backend.snapshot(slot)
    assert files(cache) == []


async def test_an_agent_that_ends_while_its_copy_is_described_leaves_nothing(
    local: SlotBench, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = snapshots.LocalSnapshots._describe
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(self: snapshots.LocalSnapshots, name: str, about: dict[str, Any]) -> None:
        begun.set()
        go.wait(30)
        describe(self, name, about)
        ended.set()

    monkeypatch.setattr(snapshots.LocalSnapshots, "_describe", slow)
    copy = asyncio.create_task(local.backend.snapshot(await local.slot()))
    await asyncio.to_thread(begun.wait, 30)
    copy.cancel()
    await asyncio.wait([copy], timeout=0.05)  # it has to wait for what a thread does for it
    go.set()
    await asyncio.wait([copy])
    assert await asyncio.to_thread(ended.wait, 30)
    assert copy.cancelled()
    assert files(cache) == []


async def test_what_a_file_says_of_itself_is_kept_and_what_is_in_no_file_prevents_a_copy(
    local: SlotBench,
) -> None:
    slot, fresh = await local.slot(), await local.slot()
    backend = local.backend
    attribute = "import os; print(os.{}xattr('f', 'user.a'{}))"
    await local.out(slot, f'touch f; python3 -c "{attribute.format("set", ", bytes(2)")}"')
    kept = await backend.snapshot(slot)
    await backend.restore(fresh, kept.snapshot_id)
    found = await local.out(fresh, f'python3 -c "{attribute.format("get", "")}"')
    assert found == repr(bytes(2))
    await local.out(slot, "ipcmk -Q")
    with pytest.raises(NoSnapshot, match="System V"):
        await backend.snapshot(slot)
    await backend.drop_snapshot(kept.snapshot_id)


@pytest.mark.parametrize(("levels", "is_kept"), [(15, True), (17, False)])
async def test_paths_that_could_not_be_unpacked_prevent_a_copy(
    local: SlotBench, levels: int, is_kept: bool
) -> None:
    slot, fresh = await local.slot(), await local.slot()
    name = "b'n' * 253 + bytes([10, 255])"
    deep = f"import os; [(os.mkdir({name}), os.chdir({name})) for _ in range({levels})]"
    await local.out(slot, f'python3 -c "{deep}"')
    if not is_kept:
        with pytest.raises(NoSnapshot, match="4000 bytes"):
            await local.backend.snapshot(slot)
        return
    kept = await local.backend.snapshot(slot)
    await local.backend.restore(fresh, kept.snapshot_id)
    await local.backend.drop_snapshot(kept.snapshot_id)


async def test_what_is_not_whole_or_older_than_the_hosts_boot_is_not_restored(
    local: SlotBench, cache: Path
) -> None:
    slot, fresh = await local.slot(), await local.slot()
    backend = local.backend
    await local.out(slot, "echo 1 >f")
    kept = await backend.snapshot(slot)
    about, archive = files(cache)
    written, data = json.loads(about.read_text()), archive.read_bytes()
    for spoil in ({"boot": "another"}, {"bytes": 1}, {"deployment": "another"}, {"bytes": "x"}):
        about.write_text(json.dumps(written | spoil))
        with pytest.raises(NoSnapshot):
            await backend.restore(fresh, kept.snapshot_id)
    about.write_text(json.dumps(written))
    archive.write_bytes(os.urandom(len(data)))
    with pytest.raises(NoSnapshot, match="exit code 2") as failed:
        await backend.restore(fresh, kept.snapshot_id)
    assert failed.value.may_pass
    archive.write_bytes(data)
    await backend.restore(fresh, kept.snapshot_id)
    assert await local.out(fresh, "cat f") == "1"
    old = time.time() - snapshots.UNFINISHED_S - 1
    about.unlink()
    os.utime(archive, (old, old))
    assert await backend.snapshots() == []
    assert files(cache) == [], "its worker died before it was complete"
