"""Images that nodes pull: their digests and configurations, from their registries or a file.

Nodes get images themselves and tell nobody what is in them, so the worker asks the registry, and
names the digest in the job: all nodes run the same then. For images that no registry has, the
operator gives what `docker image inspect` says of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_plugins.containers.images.hosted import HostedImage, described, hosted_image
from hermes_plugins.images.permission import check_name, full_name, substitute
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.nomad.builds import NodeBuilds
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import ConfigurationError, EnvBug, EnvInfraError, SandboxRejected
from hermes_queue.images.spec import ImageSpec

SETTING = "HERMES_QUEUE_NOMAD_IMAGES_FILE"
MAX_FILE_BYTES = 64 << 20


class NomadImages:
    """See `HostImages`."""

    def __init__(
        self, settings: NomadSettings, images: ImageSettings | None = None, *, cache: Path
    ) -> None:
        self.images = images or ImageSettings()
        self._settings = settings
        self._on_nodes: Mapping[str, HostedImage] | None = None
        self._looked_up: dict[str, asyncio.Task[HostedImage]] = {}
        self._builds = NodeBuilds(settings, self.images, cache)

    async def own(self, name: str) -> HostedImage:
        """See `HostImages`. Raises as `ensure`."""
        return await self._find(name)

    async def ensure(self, spec: ImageSpec) -> tuple[HostedImage, str]:
        """See `HostImages`.

        Raises:
            SandboxRejected: the task may not use it, its registry does not have it, or nothing
                builds its folder here.
            SandboxUnavailable: the engine that builds is away.
            EnvInfraError: the registry cannot be reached, or answers nonsense; or a build failed.
            EnvBug: the spec, the Dockerfile or its context is malformed.
            ConfigurationError: the operator's file is.
        """
        if spec.reference is None and spec.context is None:
            raise EnvBug("image: neither reference nor context is set")
        if spec.reference is not None:
            try:
                return await self._named(spec.reference)
            except (SandboxRejected, EnvInfraError):
                if spec.context is None or self._settings.build_engine is None:
                    raise
        return await self._builds.ensure(spec)

    async def close(self) -> None:
        """Idempotent, never raises."""
        await self._builds.close()

    async def _named(self, reference: str) -> tuple[HostedImage, str]:
        check_name(reference, self.images)
        other = substitute(reference, self.images)
        found = await self._find(other or reference)
        return found, described(reference, other, found)

    async def _find(self, name: str) -> HostedImage:
        """An image by its name, looked up once."""
        whole = full_name(name)
        if self._on_nodes is None:
            self._on_nodes = await asyncio.to_thread(read_images, self._settings.images_file)
        if whole in self._on_nodes:
            return self._on_nodes[whole]
        task = self._looked_up.get(whole)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._looked_up[whole] = asyncio.create_task(self._look_up(whole))
        return await asyncio.shield(task)

    async def _look_up(self, whole: str) -> HostedImage:
        from hermes_plugins.images.fetch.registry import Registry

        config, digest = await Registry().configuration(whole, self.images)
        pinned = f"{_repository(whole)}@sha256:{digest}"
        return HostedImage(pinned, config, (pinned,))


def _repository(whole: str) -> str:
    """A whole name without tag and digest."""
    path = whole.partition("@")[0]
    head, _, last = path.rpartition("/")
    return f"{head}/{last.partition(':')[0]}"


def read_images(path: Path | None) -> dict[str, HostedImage]:
    """Images by their whole names, from what `docker image inspect` has printed. Blocking.

    Raises ConfigurationError: the file is unreadable or something else.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError("it has more than 64 MiB")
        found = json.loads(data)
        if not isinstance(found, list):
            raise ValueError("it is no list")
        images: dict[str, HostedImage] = {}
        for number, each in enumerate(found):
            images |= _named(each, number)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{SETTING}={path}: {error}; write it with: docker image inspect NAME... >{path}"
        ) from error
    return images


def _named(found: Any, number: int) -> dict[str, HostedImage]:
    """The names of one image. Raises ValueError."""
    try:
        image = hosted_image(found)
        names = [*(found.get("RepoTags") or ()), *(found.get("RepoDigests") or ())]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"[{number}] is no image: {error!r}") from error
    if not names:
        raise ValueError(f"[{number}]: the image has no name, so that nodes cannot find it")
    images = {}
    for name in map(str, names):
        digests = image.digests or (f"{name}@{image.image_id}",)
        try:
            images[full_name(name)] = HostedImage(name, image.config, digests)
        except SandboxRejected as error:
            raise ValueError(f"[{number}]: {error}") from error
    return images
