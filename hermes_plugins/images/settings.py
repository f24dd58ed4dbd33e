"""The section of images: what tasks may ask for, and where images are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hermes_queue.settings.section import PREFIX, Section


class ImageSettings(Section, env_prefix=PREFIX + "IMAGES_"):
    """Images of tasks: the most that a task gets from this worker, and the store on its host."""

    allowed: tuple[str, ...] = ("*",)
    """Shell patterns of the names that tasks may use, e.g. ["alexgshaw/*"]; a folder with a
    Dockerfile needs the names in its FROM lines."""
    max_cpus: float = Field(default=4.0, gt=0)
    """Most cores of a slot with an image; a task that wants more is refused."""
    max_memory_mb: int = Field(default=8192, ge=64)
    """Most memory of a slot with an image; a task that wants more is refused."""
    max_disk_mb: int = Field(default=20_480, ge=1)
    """Most disk space that a task may have beside its image; one that wants more is refused."""
    network: Literal["none", "open"] = "none"
    """Most that slots with an image reach. Builds have a network in either case."""
    base_images: dict[str, str] = Field(default_factory=dict)
    """Substitutions of names, e.g. {"ubuntu:24.04": "debian:trixie-local"}; recorded in the
    trajectory."""
    mirror: str | None = None
    """Registry used in place of Docker Hub, e.g. "mirror.example.com"."""
    store_mb: int = Field(default=20_480, ge=0)
    """Disk space of the images that our own builder keeps on this host; the least recently used go
    first."""
