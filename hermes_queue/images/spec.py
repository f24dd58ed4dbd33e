"""An image as a task names it, and what its configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Network = Literal["none", "open"]
"""What a slot with an image reaches: nothing but its own loopback, or the network of its host."""

OWN_ROOT = "hermes-queue.own-root"
"""Label of images that nothing may stand in for, as localmodal does elsewhere."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The root file system of a slot: by name, or by a folder with a Dockerfile.

    With both, the name is used where it can be had, and else the folder is built.
    """

    reference: str | None = None
    """Name in a registry or of an imported image, with a digest (`name@sha256:...`) where known."""
    context: str | None = None
    """Absolute path, on the worker's host, of a folder with a Dockerfile."""
    digest: str = ""
    """Hex SHA-256 over the names, modes and contents of the context's files; part of every cache
    key. A folder with another digest is refused."""
    build_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says about the programs in it (OCI image configuration, `config`)."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    """Name or uid, with an optional group after a colon; "" = root."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
