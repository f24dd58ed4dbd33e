"""Images that an engine has, or pulls."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hermes_plugins.containers.images.client import EngineClient, progress, translated
from hermes_plugins.containers.settings import DockerSettings
from hermes_plugins.images.base_image import can_stand_for
from hermes_plugins.images.permission import (
    DOCKER_HUB,
    VARIABLE,
    check_name,
    full_name,
    short_name,
    substitute,
)
from hermes_plugins.images.settings import ImageSettings
from hermes_queue.errors import (
    EnvBug,
    EnvInfraError,
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
)
from hermes_queue.images.spec import ImageConfig, ImageSpec

logger = logging.getLogger(__name__)

THROTTLED = re.compile(r"toomanyrequests|too many requests|\b429\b|rate.?limit", re.IGNORECASE)
UNKNOWN = re.compile(
    r"manifest.{0,40}(unknown|not found)|not found|does not exist|access.{0,20}denied|"
    r"unauthorized|name unknown|invalid reference|denied:",
    re.IGNORECASE,
)
"""What a registry says of an image that it does not have, or not for us."""
THROTTLED_RETRY_S = 120.0
"""Registries count pulls over hours."""


@dataclass(frozen=True, slots=True)
class HostedImage:
    """An image that the engine has."""

    image_id: str
    config: ImageConfig
    digests: tuple[str, ...] = ()
    """`name@sha256:...` of the registries that it came from."""
    volumes: tuple[str, ...] = ()
    """Directories for which engines make a volume in each container: its list of changes has
    nothing below them, nor has an image that is committed, or built from this one by RUN lines."""

    @property
    def digest(self) -> str:
        """That of the registry's manifest, else of the image itself."""
        return next((each.partition("@")[2] for each in self.digests), self.image_id)


class EngineImages:
    """The images of one engine, for one process."""

    def __init__(
        self,
        client: EngineClient,
        settings: DockerSettings,
        images: ImageSettings | None = None,
        *,
        cache: Path,
    ) -> None:
        self._client = client
        self._settings = settings
        self.images = images or ImageSettings()
        self._locks = cache / "containers" / "builds"
        self._turns: dict[str, asyncio.Lock] = {}
        self._noted_ids: set[str] = set()

    async def find(self, name: str) -> HostedImage | None:
        """The image of this name or id, if the engine has it. Raises SandboxError."""
        with translated(f"looking for the image {name}", making=True):
            try:
                found = await self._client.json(f"images/{quote(name)}/json")
            except Exception as error:
                if getattr(error, "status", None) == 404:
                    return None
                raise
        return hosted_image(found or {})

    async def own(self, name: str) -> HostedImage:
        """An image that the operator named in a setting; pulled unless it is there.

        Raises as `ensure`.
        """
        return await self.find(name) or await self._pulled(name)

    async def ensure(self, spec: ImageSpec) -> tuple[HostedImage, str]:
        """The image of a task and its description: its name and digest, and substitutions.

        It is pulled or built unless the engine has it; concurrent calls do that once.

        Raises:
            SandboxRejected: it is not allowed here, or cannot be had; says what to change.
            SandboxUnavailable: the registry is throttling us, or the engine is away.
            EnvBug: the spec, the Dockerfile or its context is malformed; or has another digest.
            EnvInfraError: a download or a step of the build failed.
            SandboxError: the engine failed.
        """
        if spec.reference is None and spec.context is None:
            raise EnvBug("image: neither reference nor context is set")
        if spec.reference is not None:
            try:
                return await self.named(spec.reference)
            except (SandboxRejected, EnvInfraError):
                if spec.context is None:
                    raise
        from hermes_plugins.containers.images.build import built

        return await built(self._client, self._settings, self, spec, self._locks)

    def _noted(self, name: str, image: HostedImage) -> HostedImage:
        """The image; the log has its volumes once."""
        if image.volumes and image.image_id not in self._noted_ids:
            self._noted_ids.add(image.image_id)
            logger.warning(
                "image %s has volumes at %s: RUN lines of images that are built from it cannot "
                "change what is there, and changes of slots there are seen by no list",
                name,
                ", ".join(image.volumes[:10]),
                extra={"action": "image_volumes"},
            )
        return image

    async def named(self, reference: str) -> tuple[HostedImage, str]:
        """The image behind a name of a task, with substitution. Raises as `ensure`."""
        check_name(reference, self.images)
        other = substitute(reference, self.images)
        name = other or reference
        found = await self.find(name) or await self.find(full_name(name))
        found = self._noted(name, found or await self._pulled(name))
        return found, described(reference, other, found)

    async def _pulled(self, name: str) -> HostedImage:
        whole = full_name(name)
        async with self._turns.setdefault(whole, asyncio.Lock()):
            if found := await self.find(whole):
                return found
            return await self._pull(whole)

    async def _pull(self, name: str) -> HostedImage:
        """Bring an image from its registry, or from the mirror under its own name."""
        source = name
        if self.images.mirror and name.startswith(f"{DOCKER_HUB}/"):
            source = f"{self.images.mirror}/{name.removeprefix(f'{DOCKER_HUB}/')}"
        logger.info("pulling %s", source, extra={"action": "image_pull"})
        repository, tag = _split(source)
        params = {"fromImage": repository, "tag": tag}
        try:
            with translated(f"pulling {source}", making=True):
                async with self._client.request(
                    "images/create", "POST", params=params, timeout_s=self._settings.pull_timeout_s
                ) as response:
                    _, problem = await progress(response)
        except SandboxRejected as error:
            problem = str(error)
        except (TimeoutError, SandboxError) as error:
            if isinstance(error, SandboxUnavailable) and "pulling" not in str(error):
                raise
            problem = str(error)
        if problem:
            raise _not_pulled(short_name(name), source, problem)
        if source != name:
            with translated(f"naming {source}"):
                await self._client.json(f"images/{quote(source)}/tag", "POST", params=_tag(name))
        if (found := await self.find(name)) is None:
            raise SandboxError(f"the engine pulled {source}, and does not have it")
        return found


def described(reference: str, other: str | None, image: HostedImage) -> str:
    """A task's image for the record; equal only for equal images."""
    algorithm, _, hexadecimal = image.digest.rpartition(":")
    shown = f"{algorithm or 'sha256'}:{hexadecimal}"
    name = short_name(reference)
    return f"{name}, {shown}" if other is None else f"{name}, replaced by {other}, {shown}"


def cannot_be_had(name: str, why: str) -> str:
    """The message for an image that is not there and cannot be pulled."""
    mirror = ""
    if full_name(name).startswith(f"{DOCKER_HUB}/"):
        mirror = f"set {VARIABLE}MIRROR=HOST to another registry, "
    made = ""
    if can_stand_for(name):
        made = (
            f"make one of Debian's packages (`hermes-queue images base {name} --out FILE`, "
            f"`docker import FILE {name}`), "
        )
    # What helps comes first: tables cut long messages.
    return (
        f"the image {name} cannot be pulled: {mirror}`docker pull {name}` with the engine's own "
        f"login, `docker load` an archive, {made}or name another one with "
        f'{VARIABLE}BASE_IMAGES=\'{{"{name}": "OTHER"}}\'. The engine: {why[:500]}'
    )


def _not_pulled(name: str, source: str, problem: str) -> SandboxError | EnvInfraError:
    message = cannot_be_had(name, problem if source.endswith(name) else f"{source}: {problem}")
    if THROTTLED.search(problem):
        return SandboxUnavailable(message, retry_after_s=THROTTLED_RETRY_S)
    if UNKNOWN.search(problem):
        return SandboxRejected(message)
    return EnvInfraError(message)


def _split(name: str) -> tuple[str, str]:
    """Repository, and tag or digest."""
    repository, at, digest = name.partition("@")
    if at:
        head, colon, tag = repository.rpartition(":")
        return (head if colon and "/" not in tag else repository), digest
    head, colon, tag = repository.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (repository, "latest")


def _tag(name: str) -> dict[str, str]:
    repository, tag = _split(name)
    # A digest is no tag; the image stays known under the mirror's name and under this one.
    return {"repo": repository, "tag": tag.rpartition(":")[2] if ":" in tag else tag}


def hosted_image(found: Mapping[str, Any]) -> HostedImage:
    """An image as an engine describes it. Raises KeyError: it has no id."""
    config = found.get("Config") or {}
    pairs = [str(each).partition("=") for each in config.get("Env") or ()]
    return HostedImage(
        image_id=str(found["Id"]),
        config=ImageConfig(
            env={name: value for name, _, value in pairs},
            workdir=str(config.get("WorkingDir") or "/"),
            user=str(config.get("User") or ""),
            entrypoint=_words(config.get("Entrypoint")),
            command=_words(config.get("Cmd")),
        ),
        digests=tuple(str(each) for each in found.get("RepoDigests") or ()),
        volumes=tuple(sorted(map(str, config.get("Volumes") or ()))),
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return ("/bin/sh", "-c", value)
    return tuple(str(each) for each in value or ())
