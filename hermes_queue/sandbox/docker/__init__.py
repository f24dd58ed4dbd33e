"""The backend `docker`: slots in containers of Docker Engine or Podman.

accounts.py    files of a container that engines read to start a program
changes.py     what a container has changed
engine.py      the engine as a host of containers
execution.py   a running program in a container
facts.py       what an engine enforces, for its check
networks.py    networks and volumes, for slots with services

The client library is imported when a backend starts, never with this package.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.offers import Condition, Flag
from hermes_queue.sandbox.profiles import refuse_but_default as check_profile
from hermes_queue.settings import DockerSettings

__all__ = ["BACKEND", "FLAGS", "SETTINGS", "check", "check_profile"]


# Imported on use: producers load this module before they print their help.
def _make(**options: Any) -> SandboxBackend:
    from hermes_queue.sandbox.docker.engine import make_backend

    return make_backend(DockerSettings(), **options)


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`. Makes no container."""
    from hermes_queue.sandbox.docker.facts import conditions

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
