"""Manifests and configurations of images (https://github.com/opencontainers/image-spec).

They come from registries and archives, so sizes and numbers are bounded, and digests have a form.
"""

from __future__ import annotations

import hashlib
import platform
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_plugins.images.dockerfile.evaluation import ARCHITECTURES, DEFAULT_PATH
from hermes_plugins.images.layers import MAX_LAYERS
from hermes_queue.images.spec import ImageConfig

MAX_DOCUMENT_BYTES = 4 << 20
MAX_MANIFESTS = 200
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class MalformedImage(ValueError):
    """A document is not what it should be; the text says how."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class _Platform(_Document):
    architecture: str = ""
    os: str = ""


class Descriptor(_Document):
    """A reference to a document or blob."""

    media_type: str = Field(default="", alias="mediaType", max_length=200)
    digest: Digest
    size: int = Field(ge=0)
    platform: _Platform | None = None


class Manifest(_Document):
    """An image: its configuration and its layers."""

    config: Descriptor
    layers: tuple[Descriptor, ...] = Field(max_length=MAX_LAYERS)


class ManifestIndex(_Document):
    """Images of one name for several platforms."""

    manifests: tuple[Descriptor, ...] = Field(max_length=MAX_MANIFESTS)

    def for_this_host(self) -> Descriptor:
        """The one for our platform. Raises MalformedImage: there is none."""
        architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
        for each in self.manifests:
            found = each.platform
            if found and (found.os, found.architecture) == ("linux", architecture):
                return each
        if len(self.manifests) == 1 and self.manifests[0].platform is None:
            return self.manifests[0]
        raise MalformedImage(f"it has no image for linux/{architecture}")


class SavedImage(_Document):
    """One entry of `manifest.json` in an archive of `docker save`."""

    config: str = Field(alias="Config", max_length=300)
    layers: tuple[str, ...] = Field(alias="Layers", max_length=MAX_LAYERS)
    names: tuple[str, ...] | None = Field(default=None, alias="RepoTags", max_length=1000)


class _Programs(_Document):
    env: tuple[str, ...] | None = Field(default=None, alias="Env", max_length=1000)
    workdir: str | None = Field(default=None, alias="WorkingDir", max_length=4000)
    user: str | None = Field(default=None, alias="User", max_length=300)
    entrypoint: tuple[str, ...] | str | None = Field(
        default=None, alias="Entrypoint", max_length=1000
    )
    command: tuple[str, ...] | str | None = Field(default=None, alias="Cmd", max_length=1000)


class _FileSystem(_Document):
    diff_ids: tuple[Digest, ...] = Field(default=(), max_length=MAX_LAYERS)


class Configuration(_Document):
    """The configuration of an image, and the digests of its layers' archives, lowest first."""

    config: _Programs | None = None
    rootfs: _FileSystem = _FileSystem(diff_ids=())

    def programs(self) -> ImageConfig:
        """What it says about its programs."""
        found = self.config or _Programs()
        pairs = [each.partition("=") for each in found.env or ()]
        env = {name: value for name, _, value in pairs if name}
        workdir = found.workdir or "/"
        return ImageConfig(
            {"PATH": DEFAULT_PATH, **env},
            workdir if workdir.startswith("/") else "/",
            found.user or "",
            _words(found.entrypoint),
            _words(found.command),
        )


AnyDocument = TypeVar("AnyDocument", bound=_Document)


def read(kind: type[AnyDocument], data: bytes, what: str) -> AnyDocument:
    """A document from JSON. Raises MalformedImage: malformed or too large; names the field."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise MalformedImage(f"{what} has more than {MAX_DOCUMENT_BYTES >> 20} MiB")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise MalformedImage(f"{what} is malformed: {place}: {first['msg']}") from error


def check_digest(data: bytes, digest: str, what: str) -> None:
    """Raise MalformedImage unless `data` has this digest."""
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if found != digest:
        raise MalformedImage(f"{what} has the digest {found} instead of {digest}")


def _words(value: tuple[str, ...] | str | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value or ()
