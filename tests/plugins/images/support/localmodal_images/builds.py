"""Recipes of images become layers of this host, by the code that serves slots of `local`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localmodal.rooted.recipe import Image
from localmodal.rooted.uploads import Uploads

from hermes_plugins.images.build import Builder, StageImage
from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.plan import plan
from hermes_plugins.images.rootfs import changes as differences
from hermes_plugins.images.rootfs.host import RootfsHost
from hermes_plugins.images.rootfs.slot import HeldImage
from hermes_plugins.images.rootfs.slots import can_have_images
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.steps import Rootfs
from hermes_plugins.images.store import ImageStore, PinnedImage
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.host.paths import slot_directory
from hermes_queue.sandbox.host.spawner import Spawners
from hermes_queue.settings import LocalSandboxSettings, PathSettings

logger = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A finished image, whose layers stay until it is released."""

    stage: StageImage
    held: HeldImage


class ImageBuilds:
    """Builds of one server. Belongs to its event loop."""

    def __init__(self, cache: Path | None = None) -> None:
        """`cache`: directory of the host's images; None = that of the backend `local`."""
        self.cache = (cache or PathSettings().cache).absolute()
        self.host = RootfsHost(self.cache)
        self.settings = ImageSettings()
        self.steps = RootfsSteps(self.host, LocalSandboxSettings())
        self.store = ImageStore(self.cache / "images", self.settings, self.steps)
        self.spawners = Spawners(confined=True)
        self._stages: dict[str, StageImage] = {}
        self._checking = asyncio.Lock()
        self._checked = False
        self._removing: set[asyncio.Task[None]] = set()

    async def check(self) -> None:
        """Raises IsolationUnavailable: sandboxes cannot have images here; says what to do."""
        async with self._checking:
            if not self._checked:
                if not can_have_images():
                    await asyncio.to_thread(lambda: self.host.ids)  # says what is missing
                await self.host.check()
                self._checked = True

    async def build(
        self, image: Image, bases: dict[str, Image], uploads: Uploads, report: Callable[[str], None]
    ) -> HeldImage:
        """The image of a recipe, whose base images are built.

        Raises as `ImageStore.pin`; and SandboxError: a base image is a snapshot.
        """
        await self.check()
        folder = uploads_folder(self.cache)
        pinned = PinnedImage(self.store.layers)
        try:
            await asyncio.to_thread(uploads.write, image.upload_id, folder)
            text = "\n".join(image.own) + "\n"
            stage = await self._built(image, text, folder, bases, pinned, report)
        except BaseException:
            pinned.release()
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._stages[image.image_id] = stage
        chain = self.store.layers.chain(stage.top)
        if chain is None or stage.top is None:
            pinned.release()
            raise SandboxError(f"the layers of {image.image_id} were deleted under its build")
        paths = tuple(map(self.store.layers.path, chain))
        rootfs = Rootfs(paths, stage.config, stage.digest, f"image {image.image_id}")
        return HeldImage(rootfs, pinned.release)

    async def _built(
        self,
        image: Image,
        text: str,
        folder: Path,
        bases: dict[str, Image],
        pinned: PinnedImage,
        report: Callable[[str], None],
    ) -> StageImage:
        context = await asyncio.to_thread(BuildContext, folder)
        found = await asyncio.to_thread(plan, text, dict(image.arguments))
        images: dict[str, StageImage] = {}
        for name in found.images:
            if name in bases:
                images[name] = await self._base(bases[name], pinned)
            else:
                with found.naming(name):
                    record = await self.store.named(name, pinned)
                images[name] = StageImage(record.top, record.config, record.digest)
        builder = Builder(
            self.store.layers,
            context,
            found,
            images,
            pin=pinned.pin,
            timeout_s=BUILD_TIMEOUT_S,
            memory_mb=self.settings.max_memory_mb,
            report=report,
        )
        stage = await builder.run()
        await self.store.make_room()
        return stage

    async def _base(self, image: Image, pinned: PinnedImage) -> StageImage:
        stage = self._stages.get(image.image_id)
        if stage is None:
            raise EnvBug(f"localmodal cannot build on {image.image_id}: it is a snapshot")
        for key in self.store.layers.chain(stage.top) or ():
            await pinned.pin(key)
        return stage

    async def keep(self, base: HeldImage, upper: Path, layer: Path) -> HeldImage:
        """An image of a sandbox's base and files; they are copied to the new directory `layer`.

        Raises SandboxError.
        """
        try:
            await asyncio.to_thread(slot_directory, layer, owner=self.host.ids.host_id)
            await differences.copy(self.host, upper, layer)
        except OSError as error:
            raise SandboxError(f"the sandbox's files cannot be copied: {error}") from error
        base.hold()
        rootfs = replace(
            base.rootfs,
            layers=(*base.rootfs.layers, layer),
            digest=secrets.token_hex(32),
            description=f"{base.rootfs.description}, changed in a sandbox",
        )

        def free() -> None:
            removing = asyncio.create_task(asyncio.to_thread(self._remove, layer))
            self._removing.add(removing)
            removing.add_done_callback(self._removing.discard)
            base.release()

        return HeldImage(rootfs, free)

    def _remove(self, layer: Path) -> None:
        try:
            self.host.remove(layer)
        except OSError as error:  # it goes with the server
            logger.warning("cannot delete %s: %s", layer, error, extra={"action": "image_left"})

    async def close(self) -> None:
        """Free what it has; no sandbox of its images runs. Idempotent."""
        await asyncio.gather(*self._removing)
        await self.spawners.close()
        await self.steps.close()


def uploads_folder(cache: Path) -> Path:
    """A path for the files of one build."""
    place = cache / "images" / "contexts"
    place.mkdir(parents=True, exist_ok=True)
    return place / secrets.token_hex(8)
