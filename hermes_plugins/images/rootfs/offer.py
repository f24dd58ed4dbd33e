"""Slots with images for the backend `local`, see `Plugin.image_slots`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from hermes_plugins.images.settings import ImageSettings
from hermes_queue.sandbox import local
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.offers import Condition
from hermes_queue.settings import LocalSandboxSettings, RedisSettings


# Imported on use: producers load this module before they print their help.
def _make(**options: Any) -> SandboxBackend:
    from hermes_plugins.images.rootfs.backend import RootfsLocalBackend

    return RootfsLocalBackend(**options)


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`."""
    from hermes_queue.sandbox.local.host_check import network

    async for condition in local.check():
        yield condition
    settings = LocalSandboxSettings()
    if settings.isolation == "bwrap":
        yield await asyncio.to_thread(_images)
    if ImageSettings().network == "open" and not settings.network:
        yield network(RedisSettings())


def _images() -> Condition:
    from hermes_plugins.images.rootfs.slots import can_have_images
    from hermes_queue.sandbox.host.user_namespaces import find_id_map

    check = "sandbox.local.images"
    if can_have_images():
        return Condition(check, "tasks with an image of their own can have slots")
    why = find_id_map("").reason or "this kernel or processor cannot have them"
    return Condition(check, f"tasks with an image of their own are refused: {why}")


BACKEND: BackendFactory = _make
