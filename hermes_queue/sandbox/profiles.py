"""Profiles of a backend with one kind of slot."""

from __future__ import annotations

from hermes_queue.errors import SandboxRejected
from hermes_queue.sandbox.base import SlotSpec

DEFAULT_PROFILE = "default"
"""The profile that every backend has: its own settings."""


def refuse_but_default(name: str) -> None:
    """Refuse other profiles, for a backend with one kind of slot. Raises SandboxRejected."""
    if name != DEFAULT_PROFILE:
        raise SandboxRejected(
            f"sandbox profile {name!r} is unknown to this worker; known: {DEFAULT_PROFILE} "
            "(its slots are all alike; further profiles need HERMES_QUEUE_SANDBOX_BACKEND=modal)"
        )


def refuse_images(backend: str, spec: SlotSpec, *, plugin: str = "") -> None:
    """Refuse tasks with an image, for a backend without them. Raises SandboxRejected.

    `plugin`: the one of ours with which its slots can have images.
    """
    if spec.image is not None and plugin:
        raise SandboxRejected(
            f"the task has an image of its own, and slots of the backend {backend!r} have one with "
            f"the plugin {plugin!r}, which is not installed here: see `hermes-queue plugins`"
        )
    if spec.image is not None:
        raise SandboxRejected(
            f"the task has an image of its own, and slots of the backend {backend!r} cannot have "
            "one: set HERMES_QUEUE_SANDBOX_BACKEND to one that can, e.g. docker"
        )
