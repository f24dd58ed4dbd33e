"""Snapshots of slots: an archive that a slot's own rights make, kept as a directory snapshot.

The archive lies in a directory of the sandbox's root, which slots cannot enter. Modal keeps a copy
of that directory as an image until its time is over; any worker of the account can mount it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hermes_queue.errors import NoSnapshot, SandboxRejected
from hermes_queue.sandbox.modal.account import ModalAccount
from hermes_queue.sandbox.modal.box import ROOT, Lease, ModalSandbox
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import ResumeSettings

MOST_KIB = 256 << 10
"""Size of the largest archive."""
PACK_TIMEOUT_S = 60
UNPACK_TIMEOUT_S = 300
KEEP_TIMEOUT_S = 120
_GRACE_S = 30.0
_ID = re.compile(r"im-[A-Za-z0-9]{1,100}")


async def take(box: ModalSandbox, lease: Lease, trajectory_id: str) -> Snapshot:
    """See `KeepsSnapshots.snapshot`."""
    async with _directory(box) as name:
        facts = await _ask(
            box,
            *("pack", lease.slot_id, str(lease.uid), name, str(MOST_KIB), _mark(trajectory_id)),
            timeout_s=PACK_TIMEOUT_S,
        )
        with explained("keeping a slot's files", gone=True):
            image = await box.sandbox.snapshot_directory.aio(
                f"{ROOT}/kept/{name}", timeout=KEEP_TIMEOUT_S, ttl=ResumeSettings().ttl_s
            )
    return Snapshot(str(image.object_id), trajectory_id, int(facts))


async def restore(
    account: ModalAccount, box: ModalSandbox, lease: Lease, trajectory_id: str, snapshot_id: str
) -> None:
    """See `KeepsSnapshots`."""
    if not _ID.fullmatch(snapshot_id):
        raise NoSnapshot("Modal does not have the snapshot")
    try:
        image = await account.snapshot(snapshot_id)
        async with _mounted(box, image) as name:
            await _ask(
                box,
                *("unpack", lease.slot_id, str(lease.uid), name, _mark(trajectory_id)),
                timeout_s=UNPACK_TIMEOUT_S,
            )
    except SandboxRejected as error:
        raise NoSnapshot(f"Modal does not have the snapshot: {error}") from error


@asynccontextmanager
async def _directory(box: ModalSandbox) -> AsyncIterator[str]:
    """The name of a new directory for one archive; it is deleted afterwards."""
    name = secrets.token_hex(8)
    try:
        yield name
    finally:
        await box.script("forget", name)


@asynccontextmanager
async def _mounted(box: ModalSandbox, image: Any) -> AsyncIterator[str]:
    name = secrets.token_hex(8)
    place = f"{ROOT}/kept/{name}"
    with explained("mounting a snapshot", gone=True):
        await box.sandbox.mount_image.aio(place, image)
    try:
        yield name
    finally:
        with explained("unmounting a snapshot"):
            await box.sandbox.unmount_image.aio(place)


async def _ask(box: ModalSandbox, *arguments: str, timeout_s: float) -> str:
    """The figure that an action prints. Raises NoSnapshot: it says why it could not be done."""
    printed = await box.script(*arguments, str(timeout_s), timeout_s=timeout_s + _GRACE_S)
    kind, _, rest = printed.decode(errors="replace").strip().partition("=")
    if kind != "done":
        raise NoSnapshot(f"the slot's files cannot be copied: {rest[:300]}")
    return rest


def _mark(trajectory_id: str) -> str:
    """What tells the archives of trajectories apart, as one word."""
    return hashlib.sha256(trajectory_id.encode()).hexdigest()
