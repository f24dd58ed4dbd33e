"""Snapshots of slots: an archive that a slot's own rights make, kept as a directory snapshot.

The archive lies in a directory of the sandbox's root, which slots cannot enter. Modal keeps that
directory as an image, and any worker of the account can mount it into a sandbox of its own.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import NoSnapshot, SandboxError, SandboxRejected
from hermes_queue.sandbox.modal.account import ModalAccount
from hermes_queue.sandbox.modal.box import ROOT, Lease, ModalSandbox
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import ResumeSettings

logger = logging.getLogger(__name__)

PACK_TIMEOUT_S = 60
UNPACK_TIMEOUT_S = 300
KEEP_TIMEOUT_S = 120
_GRACE_S = 30.0
_ERROR_CHARS = 300
_ID = re.compile(r"im-[A-Za-z0-9]{1,100}")


class ModalSnapshots:
    """Snapshots of one deployment's slots, in the account's images.

    Modal deletes one when its time is over, if no worker has done so before.
    """

    def __init__(self, account: ModalAccount, deployment: str) -> None:
        self._account = account
        self._deployment = deployment
        self._ttl_s = ResumeSettings().ttl_s

    async def take(
        self, box: ModalSandbox, lease: Lease, trajectory_id: str, *, keep_s: float | None = None
    ) -> Snapshot:
        """See `KeepsSnapshots.snapshot`."""
        mark, most = self._mark(box, lease, trajectory_id), box.profile.snapshot_max_mb << 20
        async with box.packing, _archive(box) as name:
            slot = (lease.name, str(lease.uid), lease.place)
            limits = (str(most), str(PACK_TIMEOUT_S))
            # Three searches come before it.
            timeout_s = 4 * PACK_TIMEOUT_S + _GRACE_S
            size = await _ask(box, "pack", *slot, name, mark, *limits, timeout_s=timeout_s)
            with explained("keeping a slot's files", gone=True):
                image = await box.sandbox.snapshot_directory.aio(
                    f"{ROOT}/kept/{name}", timeout=KEEP_TIMEOUT_S, ttl=int(keep_s or self._ttl_s)
                )
        return Snapshot(str(image.object_id), trajectory_id, int(size))

    async def restore(
        self, box: ModalSandbox, lease: Lease, trajectory_id: str, snapshot_id: str
    ) -> None:
        """See `KeepsSnapshots`."""
        if not _ID.fullmatch(snapshot_id):
            raise NoSnapshot("Modal does not have the snapshot")
        mark = self._mark(box, lease, trajectory_id)
        words = (str(lease.uid), mark, str(UNPACK_TIMEOUT_S))
        try:
            image = await self._account.snapshot(snapshot_id)
            async with _archive(box) as name, _mounted(box, image, f"{ROOT}/kept/{name}"):
                await _ask(box, "unpack", name, *words, timeout_s=UNPACK_TIMEOUT_S + _GRACE_S)
        except SandboxRejected as error:  # a job does not fail for good because of that
            raise NoSnapshot(f"Modal does not have the snapshot: {error}") from error

    async def drop(self, snapshot_id: str) -> None:
        """See `KeepsSnapshots.drop_snapshot`."""
        if not _ID.fullmatch(snapshot_id):
            return
        try:
            await self._account.delete_snapshot(snapshot_id)
        except SandboxError as error:
            extra = {"action": "snapshot_left"}
            message = "snapshot %s stays until Modal deletes it: %s"
            logger.info(message, snapshot_id, error, extra=extra)

    def _mark(self, box: ModalSandbox, lease: Lease, trajectory_id: str) -> str:
        """One word that tells trajectories apart, and slots in which files have other paths."""
        facts = (self._deployment, trajectory_id, lease.name, lease.place, box.abilities.mounts)
        return hashlib.sha256(repr(facts).encode()).hexdigest()


@asynccontextmanager
async def _archive(box: ModalSandbox) -> AsyncIterator[str]:
    """The name of a new archive in the sandbox; what is there afterwards is deleted."""
    name = secrets.token_hex(8)
    try:
        yield name
    finally:
        try:
            await unbroken(box.script("forget", name))
        except SandboxError as error:
            extra = {"action": "archive_left"}
            logger.info("an archive stays in its sandbox: %s", error, extra=extra)


@asynccontextmanager
async def _mounted(box: ModalSandbox, image: Any, place: str) -> AsyncIterator[None]:
    with explained("mounting a snapshot", gone=True):
        await box.sandbox.mount_image.aio(place, image)
    try:
        yield
    finally:
        with explained("unmounting a snapshot", gone=True):
            await unbroken(box.sandbox.unmount_image.aio(place))


async def _ask(box: ModalSandbox, *arguments: str, timeout_s: float) -> str:
    """The figure that an action prints. Raises NoSnapshot: it says why it could not be done."""
    printed = await box.script(*arguments, timeout_s=timeout_s)
    kind, _, rest = printed.decode(errors="replace").strip().partition("=")
    if kind != "done" or not rest.isdecimal():
        what = "copied" if arguments[0] == "pack" else "restored"
        raise NoSnapshot(f"the slot's files cannot be {what}: {rest[:_ERROR_CHARS]}")
    return rest
