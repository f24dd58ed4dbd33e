"""Images that an engine builds for the nodes, from tasks' folders with a Dockerfile."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from pathlib import Path
from urllib.parse import quote

from hermes_plugins.containers.images.client import EngineClient, progress, translated
from hermes_plugins.containers.images.hosted import EngineImages, HostedImage
from hermes_plugins.containers.settings import DockerSettings
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import EnvInfraError, SandboxRejected
from hermes_queue.images.spec import ImageSpec

SAME_HOST = "localhost/hermes-queue/nodes"
"""Names of images on nodes that use the engine which has built them."""
NO_BUILDER = (
    "the task's image is a folder with a Dockerfile, and nodes of Nomad build none: name an engine "
    "that does with HERMES_QUEUE_NOMAD_BUILD_ENGINE, and with HERMES_QUEUE_NOMAD_PUSH where the "
    "nodes find its images; or push the image yourself and name it in the task (docker_image)"
)


class NodeBuilds:
    """Builds with one engine, and brings the images to where nodes find them."""

    def __init__(self, settings: NomadSettings, images: ImageSettings, cache: Path) -> None:
        self._settings = settings
        self._client = EngineClient(settings.build_engine)
        docker = DockerSettings(host=settings.build_engine)
        self._images = EngineImages(self._client, docker, images, cache=cache)
        self._opening = asyncio.Lock()
        self._brought: dict[str, asyncio.Lock] = {}
        self._done: set[str] = set()

    async def ensure(self, spec: ImageSpec) -> tuple[HostedImage, str]:
        """The image of a folder by its name for nodes, and its description.

        Raises as `EngineImages.ensure`; and SandboxRejected: no engine is to build.
        """
        if self._settings.build_engine is None:
            raise SandboxRejected(NO_BUILDER)
        async with self._opening:
            await self._client.open()
        built, shown = await self._images.ensure(dataclasses.replace(spec, reference=None))
        repository = self._settings.push or SAME_HOST
        tag = built.image_id.rpartition(":")[2][:40]
        name = f"{repository}:{tag}"
        async with self._brought.setdefault(name, asyncio.Lock()):
            if name not in self._done:
                await self._bring(built.image_id, repository, tag)
                self._done.add(name)
        return HostedImage(name, built.config, (f"{repository}@{built.image_id}",)), shown

    async def _bring(self, image_id: str, repository: str, tag: str) -> None:
        with translated(f"naming the image {repository}:{tag}", making=True):
            params = {"repo": repository, "tag": tag}
            await self._client.json(f"images/{quote(image_id)}/tag", "POST", params=params)
        if not self._settings.push:
            return
        problem, timeout_s = "", self._settings.pull_timeout_s
        try:
            with translated(f"pushing {repository}:{tag}", making=True):
                async with self._client.request(
                    f"images/{repository}/push",
                    "POST",
                    params={"tag": tag},
                    headers={"X-Registry-Auth": _credentials(repository)},
                    timeout_s=timeout_s,
                ) as response:
                    _, problem = await progress(response)
        except TimeoutError:
            problem = f"it needed more than {timeout_s:g} s"
        if problem:
            raise EnvInfraError(
                f"the image cannot be pushed to HERMES_QUEUE_NOMAD_PUSH={repository}: "
                f"{problem[:500]}"
            )

    async def close(self) -> None:
        """Idempotent, never raises."""
        await self._client.close()


def _credentials(repository: str) -> str:
    """What an engine passes on to a registry: what `docker login` left."""
    from hermes_plugins.images.fetch.registry import stored_credentials

    host = repository.partition("/")[0]
    found = {}
    if stored := stored_credentials(host):
        user, _, password = base64.b64decode(stored).decode("utf-8", "replace").partition(":")
        found = {"username": user, "password": password, "serveraddress": host}
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode("ascii")
