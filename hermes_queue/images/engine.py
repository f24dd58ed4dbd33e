"""Images at a container engine: found, pulled, built, imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hermes_queue.errors import SandboxRejected
from hermes_queue.images.engine_client import EngineClient, translated
from hermes_queue.images.spec import ImageConfig, ImageSpec
from hermes_queue.settings import DockerSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostedImage:
    """An image that the engine has."""

    image_id: str
    config: ImageConfig
    digests: tuple[str, ...] = ()
    """`name@sha256:...` of the registries that it came from."""


class EngineImages:
    """The images of one engine."""

    def __init__(self, client: EngineClient, settings: DockerSettings) -> None:
        self._client = client
        self._settings = settings

    async def find(self, name: str) -> HostedImage | None:
        """The image of this name or id, if the engine has it. Raises SandboxError."""
        with translated(f"looking for the image {name}", making=True):
            try:
                found = await self._client.json(f"images/{quote(name)}/json")
            except Exception as error:
                if getattr(error, "status", None) == 404:
                    return None
                raise
        return _hosted(found or {})

    async def ensure(self, spec: ImageSpec) -> HostedImage:
        """The image of a name. Raises SandboxError: it cannot be had."""
        if (found := await self.find(str(spec.reference))) is None:
            raise SandboxRejected(f"image {spec.reference} is not there")
        return found

    async def ensure_for(self, wanted: Any) -> tuple[HostedImage, str]:
        found = await self.ensure(wanted.image)
        return found, wanted.image.reference


def _hosted(found: Mapping[str, Any]) -> HostedImage:
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
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return ("/bin/sh", "-c", value)
    return tuple(str(each) for each in value or ())
