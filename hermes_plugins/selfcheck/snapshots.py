"""Checks of backends that keep snapshots; see `hermes_queue.sandbox.snapshots`."""

from __future__ import annotations

from typing import cast

from hermes_plugins.selfcheck.bench import (
    NotApplicable,
    SlotBench,
    Trial,
    check,
    expect,
    raising,
    same,
)
from hermes_queue.errors import NoSnapshot
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.snapshots import KeepsSnapshots

_MAKE = r"""
mkdir -p "deep/er dir" && printf 'a\0b' >"deep/er dir/$(printf 'x\ny')" && ln deep/*/x* hard
ln -s /etc/passwd outside && ln -s nowhere dangling && mkfifo pipe && truncate -s 1G sparse
touch -d '2001-02-03 04:05:06.789012' hard && chmod 4750 hard && chmod 500 deep
echo 1 >~/.own && echo 1 >"$TMPDIR/own" && mkdir /tmp/one && echo 2 >/tmp/one/f
echo 3 >/var/tmp/f
"""
_LIST = (
    'find "$PWD" ~ "$TMPDIR" /tmp /var/tmp -uid "$(id -u)" -printf \'%p %y %m %l %s %n %T@\\n\' | '
    "sort && md5sum hard ~/.own /tmp/one/f && chmod 700 deep"
)


@check(image="backend")
async def a_snapshot_brings_back_all_that_the_slot_could_write(bench: Trial, slot: Slot) -> None:
    """Keep files with names, modes, times and links, also for another worker after the slot has
    ended; a snapshot needs no more room than the data.
    """
    backend = _keeper(bench)
    await bench.out(slot, _MAKE)
    listed = await bench.out(slot, _LIST + "; chmod 500 deep")
    kept = await backend.snapshot(slot)
    expect(kept.size_bytes < 50 << 20, f"{kept.size_bytes} bytes for a sparse file")
    await bench.backend.release(slot)
    heir = await bench.another()
    keeper = _keeper(heir)
    listed_ids = [each.snapshot_id for each in await keeper.snapshots()]
    expect(set(listed_ids) <= {kept.snapshot_id}, f"others are listed: {listed_ids}")
    fresh = await heir.slot()
    await keeper.restore(fresh, kept.snapshot_id)
    same(await heir.out(fresh, _LIST), listed, "files")
    await keeper.drop_snapshot(kept.snapshot_id)
    await backend.drop_snapshot(kept.snapshot_id)
    same(await backend.snapshots(), [], "snapshots after the last was dropped")
    if listed_ids:
        with raising(NoSnapshot):
            await keeper.restore(fresh, kept.snapshot_id)


@check(image="backend")
async def what_a_snapshot_cannot_bring_back_has_none(bench: Trial, slot: Slot) -> None:
    """Raise NoSnapshot for a slot with processes, shared memory or unreadable files; never restore
    one into a slot of another trajectory.
    """
    backend = _keeper(bench)
    kept = await backend.snapshot(slot)
    for spoil, mend in (
        ("sleep 4242 >/dev/null 2>&1 &", "pkill -9 sleep"),
        ("echo x >/dev/shm/x", "rm /dev/shm/x"),
        ("mkdir closed; touch closed/f; chmod 000 closed", "chmod 700 closed; rm -r closed"),
    ):
        await bench.out(slot, spoil)
        with raising(NoSnapshot, of=spoil):
            await backend.snapshot(slot)
        await bench.out(slot, mend)
    other = await bench.backend.acquire("another trajectory", SlotSpec())
    for name in (kept.snapshot_id, "0" * 32, "../escape"):
        with raising(NoSnapshot, of=name):
            await backend.restore(other, name)
    await backend.drop_snapshot(kept.snapshot_id)
    same(await backend.snapshots(), [], "snapshots of slots that have none")


def _keeper(bench: SlotBench) -> KeepsSnapshots:
    if not bench.backend.capabilities.snapshot:
        raise NotApplicable("the backend keeps no snapshots")
    backend = bench.backend
    expect(isinstance(backend, KeepsSnapshots), "methods of `KeepsSnapshots` are missing")
    return cast(KeepsSnapshots, backend)
