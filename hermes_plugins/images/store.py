"""The images of one host, for slots without a container engine: had by name, or built.

Several processes share a store. What one of them uses is pinned, and no other one deletes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hermes_plugins.images.base_image import can_stand_for
from hermes_plugins.images.build import Builder, ReportLine, StageImage
from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.layers import LayerStore
from hermes_plugins.images.names import ImageNames, ImageRecord
from hermes_plugins.images.permission import (
    DOCKER_HUB,
    check_name,
    full_name,
    short_name,
    substitute,
)
from hermes_plugins.images.plan import BuildPlan, plan
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.steps import Rootfs, StepRunner
from hermes_queue.disk.turn import build_turn
from hermes_queue.errors import (
    EnvBug,
    EnvInfraError,
    SandboxError,
    SandboxRejected,
    TrajectoryFailure,
)
from hermes_queue.images.spec import ImageSpec

BUILDS_AT_ONCE = 2
LOOK_S = 60.0
CONTEXT = "context:"
"""Begins the names of built images; the digest of the context follows."""

REGISTRY_SAYS = "The registry: "
"""Begins the last part of `cannot_be_had`."""


class Puller(Protocol):
    """Brings an image of a registry into a store."""

    async def __call__(self, store: ImageStore, name: str) -> ImageRecord:
        """Make the layers of `name`, a whole name, and return its record.

        Raises:
            EnvInfraError: the registry could not be reached, or gave something else.
            SandboxRejected: it has no such image for us.
        """
        ...


class PinnedImage:
    """An image that stays on the disk until `release`."""

    def __init__(self, layers: LayerStore) -> None:
        self.rootfs: Rootfs
        self._layers = layers
        self._keys: list[str] = []

    async def pin(self, key: str) -> None:
        """Keep one more layer."""
        if key not in self._keys:
            await self._layers.pin(key)
            self._keys.append(key)

    def release(self) -> None:
        """Let it be deleted when there is no room. Idempotent."""
        while self._keys:
            self._layers.unpin(self._keys.pop())


class ImageStore:
    """The images below one directory, `<cache>/images`. Belongs to one event loop."""

    def __init__(
        self,
        root: Path,
        settings: ImageSettings,
        runner: StepRunner,
        *,
        puller: Puller | None = None,
        report: ReportLine = lambda _: None,
    ) -> None:
        """Touches no disk yet.

        Args:
            root: Directory of the store; others must be able to pass through its parents.
            settings: What may be used, and how much room there is.
            runner: Runs the steps of builds.
            puller: Reaches registries; None: our own client.
            report: Gets a line for people at each step of a build.
        """
        self.root, self.settings = root, settings
        self.layers = LayerStore(root, runner)
        self.names = ImageNames(root)
        self._puller, self._report = puller, report
        self._builds = asyncio.Semaphore(BUILDS_AT_ONCE)
        self._next_look = 0.0
        self._has_grown = True
        """Since the last look at its size; what died before this process began counts, too."""

    async def pin(self, spec: ImageSpec) -> PinnedImage:
        """The image of `spec`, pulled or built now unless it is here; `release` it in the end.

        Raises:
            SandboxRejected: it is not allowed here, or cannot be had; says what to change.
            EnvBug: the spec, the Dockerfile or its context is malformed; or has another digest.
            EnvInfraError: a download or a step of the build failed.
            SandboxError: the disk, or the sandbox of a step, failed.
        """
        if spec.reference is None and spec.context is None:
            raise EnvBug("image: neither reference nor context is set")
        pinned = PinnedImage(self.layers)
        try:
            try:
                pinned.rootfs = await self._found(spec, pinned)
            except TrajectoryFailure:
                await self._watch_size()  # what a build that failed has made stays, too
                raise
            await self._watch_size()
        except BaseException:
            pinned.release()
            raise
        return pinned

    async def _watch_size(self) -> None:
        if self._has_grown:
            await self.make_room()

    async def _found(self, spec: ImageSpec, pinned: PinnedImage) -> Rootfs:
        if spec.reference is not None:
            try:
                return await self._by_name(spec.reference, pinned)
            except (SandboxRejected, EnvInfraError):
                if spec.context is None:
                    raise
        return await self._by_context(spec, pinned)

    async def named(self, reference: str, pinned: PinnedImage) -> ImageRecord:
        """The image behind a name of a task, with substitution; its layers pinned.

        Raises: as `pin`.
        """
        check_name(reference, self.settings)
        name = full_name(substitute(reference, self.settings) or reference)
        record = self.names.get(name)
        if record is None or not await self._pin_chain(record.top, pinned):
            if record is not None and record.kept:
                raise SandboxRejected(
                    f"the image {short_name(name)} was imported from {record.source}, and its "
                    f"layers are gone: hermes-queue images import {short_name(name)} FILE"
                )
            record = await self.pull(name)
            if not await self._pin_chain(record.top, pinned):
                raise SandboxError(f"{name}: its layers were deleted while it was pulled")
        return record

    async def pull(self, name: str) -> ImageRecord:
        """Bring a whole name from its registry, again if it is here. Raises: as `pin`."""
        puller = self._puller
        if puller is None:
            from hermes_plugins.images.fetch.registry import Registry  # imports aiohttp, and us

            puller = Registry()
        lock = self.root / "locks" / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
        self.layers.prepare()
        began = time.time()

        def is_finished() -> bool:
            found = self.names.get(name)
            return found is not None and found.created >= began

        async with build_turn(lock, is_finished=is_finished) as number, self._builds:
            if number is not None:
                self._has_grown = True
                record = await puller(self, name)
                self.names.put(record)
                return record
        found = self.names.get(name)
        return found if found is not None else await self.pull(name)

    async def _pin_chain(self, top: str, pinned: PinnedImage) -> bool:
        """Pin all layers up to `top`; False if one is gone."""
        chain = self.layers.chain(top)
        for key in chain or ():
            await pinned.pin(key)
        return chain is not None and self.layers.chain(top) == chain

    async def _by_name(self, reference: str, pinned: PinnedImage) -> Rootfs:
        record = await self.named(reference, pinned)
        return self._rootfs(record, self._described(reference, record))

    def _rootfs(self, record: ImageRecord, description: str) -> Rootfs:
        chain = self.layers.chain(record.top) or []
        paths = tuple(map(self.layers.path, chain))
        return Rootfs(paths, record.config, record.digest, description)

    def _described(self, reference: str, record: ImageRecord) -> str:
        wanted, name = short_name(reference), short_name(record.name)
        shown = f"{name}, {record.origin}, sha256:{record.digest}"
        return shown if wanted == name else f"{wanted}, replaced by {shown}"

    async def _by_context(self, spec: ImageSpec, pinned: PinnedImage) -> Rootfs:
        """Build the folder, unless the same files on the same base images were built before."""
        if spec.digest and (record := self.names.get(f"{CONTEXT}{spec.digest}")) is not None:
            bases = {name: (await self.named(name, pinned)) for name in record.bases}
            same = all(bases[name].digest == digest for name, digest in record.bases.items())
            if same and await self._pin_chain(record.top, pinned):
                return self._rootfs(record, self._built_description(record, bases))
        context = await asyncio.to_thread(BuildContext.open, spec)
        found = await asyncio.to_thread(lambda: plan(context.dockerfile()))
        bases = {name: await self._base(name, found, pinned) for name in found.images}
        async with self._builds:
            image = await self._build(spec, context, found, bases, pinned)
        assert image.top is not None  # noqa: S101 - checked by the builder
        record = ImageRecord(
            f"{CONTEXT}{context.digest}",
            image.top,
            image.config,
            image.digest,
            "built",
            str(spec.context),
            time.time(),
            {name: base.digest for name, base in bases.items()},
        )
        self.names.put(record)
        return self._rootfs(record, self._built_description(record, bases))

    async def _base(self, name: str, found: BuildPlan, pinned: PinnedImage) -> ImageRecord:
        with found.naming(name):
            return await self.named(name, pinned)

    async def _build(
        self,
        spec: ImageSpec,
        context: BuildContext,
        found: BuildPlan,
        bases: dict[str, ImageRecord],
        pinned: PinnedImage,
    ) -> StageImage:
        self._has_grown = True
        builder = Builder(
            self.layers,
            context,
            found,
            {name: StageImage(each.top, each.config, each.digest) for name, each in bases.items()},
            pin=pinned.pin,
            timeout_s=spec.build_timeout_s,
            memory_mb=self.settings.max_memory_mb,
            report=self._report,
        )
        return await builder.run()

    def _built_description(self, record: ImageRecord, bases: dict[str, ImageRecord]) -> str:
        lines = [self._described(name, base) for name, base in bases.items()]
        start = f"built from sha256:{record.name.removeprefix(CONTEXT)}"
        return "; FROM ".join([start, *lines])

    async def make_room(self) -> int:
        """Delete the least recently used layers until `store_mb` is kept; returns freed bytes.

        What killed processes were making is deleted as well. Looks once a minute at most: a store
        of many tasks has tens of thousands of layers.
        """
        if time.monotonic() < self._next_look:
            return 0
        self._next_look = time.monotonic() + LOOK_S
        self._has_grown = False
        await self.layers.sweep()
        return await self.prune(lambda used: used > self.settings.store_mb << 20)

    async def prune(
        self, is_too_much: Callable[[int], bool], *, unused_s: float = 0.0, kept: bool = True
    ) -> int:
        """Delete layers that nobody uses, least recently used first; returns freed bytes.

        Args:
            is_too_much: Called with the bytes of all layers before each deletion; False: enough.
            unused_s: Spare layers that were used within this time.
            kept: Spare imported images, which nothing could bring back.
        """
        spared = await asyncio.to_thread(self._chains, lambda record: kept and record.kept)
        return await self._delete(is_too_much, spared, unused_s)

    async def forget(self, name: str) -> int:
        """Remove an image, and its layers that no other image needs; returns freed bytes.

        `name` is a whole name, or `context:` with the beginning of a digest. Raises KeyError: there
        is no such image.
        """
        records = self.names.all()
        is_built = name.startswith(CONTEXT) and len(name) > len(CONTEXT)
        gone = [r for r in records if r.name == name or (is_built and r.name.startswith(name))]
        if not gone:
            raise KeyError(name)
        layers = self._chains(lambda record: record in gone)
        for record in gone:
            self.names.forget(record.name)
        others = set(await asyncio.to_thread(self.layers.all)) - layers
        return await self._delete(lambda _: True, others | self._chains(lambda _: True), 0.0)

    def _chains(self, which: Callable[[ImageRecord], bool]) -> set[str]:
        """The layers of some of the images."""
        chains = [self.layers.chain(each.top) or () for each in self.names.all() if which(each)]
        return {key for chain in chains for key in chain}

    async def _delete(
        self, is_too_much: Callable[[int], bool], spared: set[str], unused_s: float
    ) -> int:
        layers = await asyncio.to_thread(self.layers.all)
        used, freed = sum(each.size_bytes for each in layers.values()), 0
        tried = set(spared)
        while is_too_much(used - freed):
            parents = {each.parent for each in layers.values()}
            free = [key for key in layers if key not in parents | tried]
            free = [key for key in free if time.time() - self.layers.used_at(key) >= unused_s]
            if not free:
                break
            key = min(free, key=self.layers.used_at)
            tried.add(key)
            with suppress(SandboxError, EnvInfraError, OSError):
                if await self.layers.remove(key):
                    freed += layers.pop(key).size_bytes
        if freed:
            await asyncio.to_thread(self._forget_lost)
        return freed

    def _forget_lost(self) -> None:
        """Remove names whose layers are gone."""
        for record in self.names.all():
            if self.layers.chain(record.top) is None:
                self.names.forget(record.name)


def cannot_be_had(name: str, why: str) -> str:
    """The message for an image that cannot be pulled."""
    short = short_name(name)
    mirror = ""
    if name.startswith(f"{DOCKER_HUB}/"):
        mirror = "HERMES_QUEUE_IMAGES_MIRROR=HOST names another registry, and "
    made = ""
    if can_stand_for(name):
        made = f"`hermes-queue images base {short}` makes one from Debian's packages (as root), "
    # What helps comes first: tables cut long messages.
    return (
        f"the image {short} cannot be pulled: {made}`hermes-queue images import {short} FILE` "
        f'brings one, {mirror}HERMES_QUEUE_IMAGES_BASE_IMAGES=\'{{"{short}": "OTHER"}}\' puts '
        f"another image in its place. {REGISTRY_SAYS}{why}"
    )
