"""A Nomad-compatible server over a real engine, and the settings for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container_engines import (
    BASE,
    ENGINES,
    MEMORY_MB,
    EngineProcess,
    base_tarball,
    engine_directory,
)
from nomad_engine import engine_server
from nomad_server import ServerThread, server_thread

from hermes_plugins.containers.images.archive import import_root
from hermes_plugins.containers.images.client import EngineClient
from hermes_queue.settings import PathSettings

TOKEN = "8176afd3-772d-0b71-8f85-7fa5d903e9d4"


@dataclass(frozen=True)
class NomadOnEngine:
    """A running server."""

    thread: ServerThread
    images_file: Path
    driver: str
    image: str = BASE

    def settings(self, cache: Path) -> dict[str, str]:
        """The settings as variables."""
        found: dict[str, Any] = {
            "ADDRESS": self.thread.address,
            "TOKEN": TOKEN,
            "DATACENTERS": '["dc1"]',
            "DRIVER": self.driver,
            "IMAGE": self.image,
            "IMAGES_FILE": self.images_file,
            "MEMORY_MB": MEMORY_MB,
            "SHARED_CACHE": "true",
            # Its reaper must not come between a worker that is killed and what is then seen.
            "REAP_S": "3600",
        }
        variables = {f"HERMES_QUEUE_NOMAD_{name}": str(value) for name, value in found.items()}
        return variables | {"HERMES_QUEUE_PATHS_CACHE": str(cache)}


@contextmanager
def nomad_on(engine: EngineProcess, directory: Path, image: str = BASE) -> Iterator[NomadOnEngine]:
    """A server whose nodes have this image, which slots without one of their own get."""
    file = directory / f"images-{engine.kind}.json"
    file.write_text(json.dumps([asyncio.run(_inspected(engine.address, image))]))
    with server_thread(lambda: engine_server(engine.kind, engine.address, token=TOKEN)) as thread:
        yield NomadOnEngine(thread, file, engine.kind, image)


async def _inspected(address: str, image: str) -> Any:
    client = EngineClient(address)
    await client.open()
    try:
        return await client.json(f"images/{image}/json")
    finally:
        await client.close()


def main(kind: str) -> None:
    """A server with an engine of its own until Ctrl-C; prints the settings for it."""
    archive = base_tarball(PathSettings().cache)
    with engine_directory() as directory, ENGINES[kind](directory) as engine:
        asyncio.run(_import(engine.address, archive))
        with nomad_on(engine, directory) as nomad:
            settings = nomad.settings(PathSettings().cache)
            settings["HERMES_QUEUE_NOMAD_BUILD_ENGINE"] = engine.address
            for name, value in settings.items():
                sys.stdout.write(f"export {name}='{value}'\n")
            sys.stdout.flush()
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


async def _import(address: str, archive: Path) -> None:
    client = EngineClient(address)
    await client.open()
    try:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        await import_root(client, archive, BASE, environment={"PATH": path})
    finally:
        await client.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docker")
