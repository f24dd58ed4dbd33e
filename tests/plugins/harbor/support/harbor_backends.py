"""What `make test-harbor` runs on: a backend's settings, and its engine or server if it has one.

As root each engine is one of our own, with a stand-in for the base image that trusts what this host
trusts; else, or with HERMES_QUEUE_DOCKER_HOST, the one that runs already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from container_engines import ENGINES, EngineProcess, engine_directory, install_packages

from hermes_plugins.images.base_image import BaseImage, make_base_image
from hermes_plugins.images.permission import full_name
from hermes_queue.settings import PathSettings

BASE = "python:3.11-slim-bookworm"
"""Of all bundled tasks."""
BACKENDS = {"localmodal": "modal", "podman": "docker"}
"""Backends that have another name than what is wanted."""
ENGINE_OF = {"docker": "docker", "podman": "podman", "nomad": "docker"}
AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""Where Debian keeps those of the host's administrator."""


@contextmanager
def harbor_backend(wanted: str) -> Iterator[dict[str, str]]:
    """The settings for a backend as variables. Raises NoEngine."""
    with contextlib.ExitStack() as stack:
        if wanted == "localmodal":
            from localmodal.server import BackgroundServer

            server = stack.enter_context(BackgroundServer()).server
            yield {**server.environment, "HERMES_QUEUE_MODAL_CREATES_PER_S": "1000"}
        elif wanted in ENGINE_OF and _needs_engine(wanted):
            engine = stack.enter_context(_engine(ENGINE_OF[wanted]))
            # These engines have no bridge.
            settings = {
                "HERMES_QUEUE_DOCKER_HOST": engine.address,
                "HERMES_QUEUE_DOCKER_IMAGE": BASE,
                "HERMES_QUEUE_DOCKER_BUILD_NETWORK": "host",
            }
            if wanted == "nomad":
                from nomad_on_engine import nomad_on

                nomad = stack.enter_context(nomad_on(engine, engine.directory, BASE))
                settings |= nomad.settings(PathSettings().cache)
                settings["HERMES_QUEUE_NOMAD_BUILD_ENGINE"] = engine.address
                del settings["HERMES_QUEUE_NOMAD_MEMORY_MB"]
            yield settings
        else:
            yield {}


def _needs_engine(wanted: str) -> bool:
    """Whether nothing is named that runs already."""
    if wanted == "nomad":
        return "HERMES_QUEUE_NOMAD_ADDRESS" not in os.environ
    return "HERMES_QUEUE_DOCKER_HOST" not in os.environ and os.geteuid() == 0


@contextmanager
def _engine(kind: str) -> Iterator[EngineProcess]:
    """An engine that has the base image."""
    install_packages("image", kind)
    authorities = tuple(str(path) for path in sorted(AUTHORITIES.glob("*.crt")))
    base = BaseImage.named(BASE, authorities=authorities)
    archive = asyncio.run(make_base_image(base, PathSettings().cache / "images" / "bases"))
    with engine_directory() as directory, ENGINES[kind](directory) as engine:
        asyncio.run(_import(engine.address, archive, base))
        yield engine


async def _import(address: str, archive: Path, base: BaseImage) -> None:
    from hermes_plugins.containers.images.archive import import_root
    from hermes_plugins.containers.images.client import EngineClient

    client = EngineClient(address)
    await client.open()
    try:
        environment = dict(base.config.env)
        await import_root(client, archive, full_name(BASE), environment=environment)
    finally:
        await client.close()
