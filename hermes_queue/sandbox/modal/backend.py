"""The Modal backend: pools of sandboxes that several slots share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import (
    MAX_FILE_BYTES,
    AssetSpec,
    Capabilities,
    Listening,
    SandboxInfo,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.modal.account import ModalAccount
from hermes_queue.sandbox.modal.assets import ModalAssets, check_python, mount_place
from hermes_queue.sandbox.modal.box import Lease, ModalSandbox
from hermes_queue.sandbox.modal.factory import BoxFactory, Readers
from hermes_queue.sandbox.modal.pool import Pool
from hermes_queue.sandbox.modal.profiles import Profiles, for_grading, for_one
from hermes_queue.sandbox.modal.snapshots import ModalSnapshots
from hermes_queue.sandbox.profiles import DEFAULT_PROFILE, refuse_images
from hermes_queue.sandbox.slot_backend import SlotBackend
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import ModalSettings, WorkerSettings

logger = logging.getLogger(__name__)

TEND_S = 5.0
GRADING = " (grading)"
"""Suffix of a profile's name for its pool for grading; no profile in a file has such a name."""
ALONE = " (alone)"
"""The same for the pool of sandboxes with one slot, for jobs that require it."""
PROVISION_S = 20.0
"""Longest wait of `start` for the minimum of sandboxes."""


@dataclass(slots=True)
class Held:
    """A leased slot and where it lies."""

    pool: Pool
    box: ModalSandbox
    lease: Lease


class ModalBackend(SlotBackend):
    """See `SandboxBackend` and `KeepsSnapshots`."""

    def __init__(
        self,
        settings: ModalSettings | None = None,
        *,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        cache: Path | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        super().__init__(slots or WorkerSettings().concurrency, labels, cache, fleet)
        self.settings = settings or ModalSettings()
        self._profiles = Profiles(self.settings)
        self._account = ModalAccount(self.settings)
        self._factory = BoxFactory(self._account, self.settings, self._fleet, self.labels)
        self._assets = ModalAssets(self._cache, self._account, self._factory, self._fleet.snapshots)
        self._snapshots = ModalSnapshots(self._account, self.labels["deployment"])
        self._asset_profiles: dict[tuple[str, str], str] = {}
        self._pools: dict[str, Pool] = {}
        self._held: dict[str, Held] = {}
        self._readers = Readers(self._factory, lambda: self._started)
        self._process = os.getpid()
        self._tender: asyncio.Task[None] | None = None
        self._isolated = True

    @property
    def capabilities(self) -> Capabilities:
        """The current ones: whether slots can be isolated is known from the first sandbox on."""
        # What root has changed may lie anywhere in the sandbox.
        return Capabilities(isolation=self._isolated, remote=True, snapshot=self._isolated)

    def resize(self, slots: int) -> None:
        """See `SandboxBackend`."""
        super().resize(slots)
        for pool in self._pools.values():
            pool.resize(slots)

    # --- life cycle -------------------------------------------------------------------

    async def start(self) -> None:
        """See `SandboxBackend`. Pools of profiles other than the default start when used."""
        async with self._opening:
            if self._started:
                return
            await self._account.open()
            self._assets.open(self._account.app_id)
            self._started, self._process = True, os.getpid()
            try:
                await self._provision()
            except BaseException:
                await unbroken(self._stop())
                raise
            self._tender = asyncio.create_task(self._tend())

    async def _provision(self) -> None:
        """Start the minimum; a first build of its image goes on in the background."""
        pool = self._pool(DEFAULT_PROFILE, self._profiles[DEFAULT_PROFILE])
        provisioning = asyncio.create_task(pool.provision())
        await asyncio.wait({provisioning}, timeout=PROVISION_S)
        if provisioning.done():
            provisioning.result()
        else:
            provisioning.add_done_callback(_note)

    async def stop(self) -> None:
        """See `SandboxBackend`."""
        await unbroken(self._stop())

    async def _stop(self) -> None:
        self._started = False
        if self._tender is not None:
            await end_tasks(self._tender)
            self._tender = None
        ended = []
        while self._held:
            slot_id, held = self._held.popitem()
            held.lease.ended = held.box.spent = True
            self._observer.released(slot_id)
            self._capacity.release()
            ended.append(held.box.end_ports(held.lease, stop=False))
        await asyncio.gather(*ended)
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.gather(
            *(pool.stop() for pool in pools), self._readers.end_idle(all_of_them=True)
        )

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            await self._tend_once()

    async def _tend_once(self) -> None:
        for pool in list(self._pools.values()):
            try:
                await pool.tend()
            except Exception:  # the SDK may raise anything; the next round tries again
                logger.exception("failed to tend sandboxes", extra={"action": "tend_failed"})
        await self._readers.end_idle()

    def _check_running(self) -> None:
        if not self._started:
            raise SandboxError("the modal backend is not running")
        if self._process != os.getpid():
            # The SDK's objects hold connections of the process that created them.
            raise SandboxError(
                "this modal backend was started before a fork: start one in each process; only "
                "ids of sandboxes are valid in all of them"
            )

    def _pool(self, name: str, profile: ModalSettings) -> Pool:
        """The pool called `name`, with sandboxes of this profile; made on first use."""
        self._check_running()
        if name not in self._pools:
            create, end = self._make_box, self._factory.end
            self._pools[name] = Pool(profile, create, end, slots=self._capacity.slots)
        return self._pools[name]

    async def _make_box(self, profile: ModalSettings) -> ModalSandbox:
        box = await self._factory.make(profile)
        self._isolated = box.abilities.uids
        return box

    # --- assets -----------------------------------------------------------------------

    async def prepare(self, spec: SlotSpec) -> None:
        """See `SandboxBackend`."""
        refuse_images("modal", spec, plugin="images")
        profile = self._profiles[spec.profile]
        self._check_running()
        for asset in spec.assets:
            self._asset_profiles[asset.kind, asset.key] = spec.profile
        await asyncio.gather(*(self._assets.ensure(profile, asset) for asset in spec.assets))
        if spec.python is not None and not spec.assets:
            check_python(profile, await self._readers.get(spec.profile, profile), spec.python)

    async def read_asset(
        self, asset: AssetSpec, path: str, *, max_bytes: int = MAX_FILE_BYTES
    ) -> bytes:
        """See `SandboxBackend`."""
        name = self._asset_profiles.get((asset.kind, asset.key), DEFAULT_PROFILE)
        profile = self._profiles[name]
        await self._assets.ensure(profile, asset)
        box = await self._readers.get(name, profile)
        try:
            return await self._assets.read(box, profile, asset, path, max_bytes=max_bytes)
        except SandboxError as error:
            box.spent = box.spent or isinstance(error, SlotLost)
            raise

    # --- slots ------------------------------------------------------------------------

    async def _lease(
        self,
        trajectory_id: str,
        spec: SlotSpec,
        pool: Pool | None = None,
        box: ModalSandbox | None = None,
    ) -> Slot:
        """Open a slot; in `box`, where a place is reserved for it, if one is given."""
        pool = pool or self._pool(*self._profile(spec))
        profile = pool.profile
        images = {asset.mount: await self._assets.ensure(profile, asset) for asset in spec.assets}
        if box is None:
            box = await pool.take({place: image.object_id for place, image in images.items()})
        try:
            lease = await self._open_slot(box, profile, trajectory_id, spec, images)
        except BaseException as error:
            # Whatever failed, a new sandbox is more likely to work.
            box.spent = box.spent or isinstance(error, SandboxError)
            box.reserved -= 1
            await unbroken(pool.freed(box))
            raise
        box.reserved -= 1
        facts = (lease.slot_id, trajectory_id, box.sandbox_id, lease.workspace, spec)
        slot = Slot(*facts, image=pool.image, usd_per_s=pool.usd_per_s)
        self._held[slot.slot_id] = Held(pool, box, lease)
        self._observer.leased(slot)
        return slot

    async def _open_slot(
        self,
        box: ModalSandbox,
        profile: ModalSettings,
        trajectory_id: str,
        spec: SlotSpec,
        images: Mapping[str, Any],
    ) -> Lease:
        check_python(profile, box, spec.python)
        await box.conceal(spec.conceal)
        pairs = []
        for asset in spec.assets:
            # Without mount namespaces all slots of the sandbox see the asset.
            own = box.abilities.mounts
            place = mount_place(asset) if own else asset.mount
            await self._assets.mount(box, place, images[asset.mount], profile, asset)
            if own:
                pairs.append(f"{place}={asset.mount}")
        return await box.open_slot(trajectory_id, pairs)

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        """See `SandboxBackend`. In place, except in two cases that need another sandbox.

        One is an image without uids, the other a profile whose slots have network access that
        they must not have during grading.
        """
        held = self._leased_slot(slot)
        spec = spec or slot.spec
        name, profile = self._profile(spec)
        graded = for_grading(profile)
        pool = self._pool(*((f"{name}{GRADING}", graded) if graded else (name, profile)))
        # Removed before the first await: a concurrent release finds nothing. Otherwise both would
        # close the slot and release its capacity.
        self._held.pop(slot.slot_id)
        try:
            box = await self._keep(slot, held, in_place=pool is held.pool)
            return await self._lease(slot.trajectory_id, spec, pool, box)
        except BaseException:
            self._capacity.release()
            raise

    def _profile(self, spec: SlotSpec) -> tuple[str, ModalSettings]:
        """Name of the pool for such a job, and the profile of its sandboxes."""
        profile = self._profiles[spec.profile]
        if spec.alone and profile.slots_per_sandbox > 1:
            return f"{spec.profile}{ALONE}", for_one(profile)
        return spec.profile, profile

    async def _keep(self, slot: Slot, held: Held, *, in_place: bool) -> ModalSandbox | None:
        """Close the slot but keep its place; None if the next one needs another sandbox."""
        box = held.box
        box.reserved += 1  # before the first await: else another job could take the place
        try:
            await unbroken(self._close(slot.slot_id, held))
        except BaseException:
            box.reserved -= 1
            await unbroken(held.pool.freed(box))
            raise
        if in_place and not box.spent:
            return box
        box.reserved -= 1
        await unbroken(held.pool.freed(box))
        return None

    async def release(self, slot: Slot) -> None:
        """See `SandboxBackend`."""
        if (held := self._held.pop(slot.slot_id, None)) is not None:
            await unbroken(self._release(slot.slot_id, held))

    async def _release(self, slot_id: str, held: Held) -> None:
        try:
            await self._close(slot_id, held)
        except Exception as error:  # noqa: BLE001 - the contract: never raises
            extra = {"action": "slot_retired"}
            logger.warning("retiring the sandbox of slot %s: %s", slot_id, error, extra=extra)
        try:
            await held.pool.freed(held.box)
        finally:
            self._capacity.release()

    async def _close(self, slot_id: str, held: Held) -> None:
        try:
            await held.box.close_slot(held.lease)
        finally:
            self._observer.released(slot_id)

    @contextlib.contextmanager
    def _in_slot(
        self, slot: Slot, *, whole: bool = False, user: str | None = None
    ) -> Iterator[files.RunInSlot]:
        with self._losing(slot) as held:
            yield functools.partial(held.box.run, held.lease, whole=whole)

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        """See `SandboxBackend`."""
        with self._losing(slot) as held:
            return await held.box.listen(held.lease, factory)

    # --- `hermes_queue.sandbox.snapshots.KeepsSnapshots` ------------------------------------

    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        """See `KeepsSnapshots`."""
        with self._losing(slot) as held:
            name = slot.trajectory_id
            return await self._snapshots.take(held.box, held.lease, name, keep_s=keep_s)

    async def restore(self, slot: Slot, snapshot_id: str) -> None:
        """See `KeepsSnapshots`."""
        with self._losing(slot) as held:
            name = slot.trajectory_id
            await self._snapshots.restore(held.box, held.lease, name, snapshot_id)

    async def snapshots(self) -> list[Snapshot]:
        """See `KeepsSnapshots`: Modal deletes those that no worker has."""
        return []

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """See `KeepsSnapshots`."""
        await self._snapshots.drop(snapshot_id)

    @contextlib.contextmanager
    def _losing(self, slot: Slot) -> Iterator[Held]:
        """The slot's lease; a sandbox that is lost takes no further slots."""
        held = self._leased_slot(slot)
        try:
            yield held
        except SlotLost:
            held.box.spent = True
            raise

    def _leased_slot(self, slot: Slot) -> Held:
        if (held := self._held.get(slot.slot_id)) is None:
            raise SlotLost(f"slot {slot.slot_id} is not leased")
        return held

    # --- the reaper's side ------------------------------------------------------------

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See `SandboxBackend`."""
        await self._account.open()
        return await self._account.list(labels)

    async def terminate(self, sandbox_id: str) -> None:
        """See `SandboxBackend`."""
        await self._account.open()
        for pool in self._pools.values():
            if box := pool.boxes.get(sandbox_id):
                box.spent = True
        await self._account.terminate(sandbox_id)
        self._observer.gone(sandbox_id)


def _note(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        extra = {"action": "provision"}
        logger.warning("cannot start the minimum of sandboxes: %s", error, extra=extra)
