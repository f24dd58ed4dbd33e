"""The backend `docker`.

The client library is imported when a backend starts, never with this package.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hermes_plugins.containers.settings import DockerSettings
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.offers import Condition, Flag
from hermes_queue.sandbox.profiles import refuse_but_default as check_profile

__all__ = ["BACKEND", "FLAGS", "SETTINGS", "check", "check_profile"]


# Imported on use: producers load this module before they print their help.
def _make(**options: Any) -> SandboxBackend:
    from hermes_plugins.containers.docker.engine import make_backend

    return make_backend(DockerSettings(), **options)


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`. Makes no container."""
    from hermes_plugins.containers.docker.facts import conditions

    async for condition in conditions(DockerSettings()):
        yield condition


BACKEND: BackendFactory = _make
SETTINGS = DockerSettings
FLAGS = (
    Flag(
        "--docker-image",
        "HERMES_QUEUE_DOCKER_IMAGE",
        "image of slots whose tasks bring none (default: python:3.11)",
        metavar="IMAGE",
    ),
)
