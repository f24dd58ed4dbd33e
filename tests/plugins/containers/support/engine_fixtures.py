"""Real engines, started once per session, and backends on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from container_engines import (
    BASE,
    ENGINES,
    MEMORY_MB,
    EngineProcess,
    NoEngine,
    base_tarball,
    engine_directory,
)
from slot_bench import SlotBench

from hermes_plugins.containers.backend import ContainerBackend
from hermes_plugins.containers.docker.engine import Engine
from hermes_plugins.containers.docker.networks import EngineNetworks
from hermes_plugins.containers.images.archive import import_root
from hermes_plugins.containers.images.client import EngineClient, find_engine
from hermes_plugins.containers.images.hosted import EngineImages
from hermes_plugins.containers.settings import DockerSettings
from hermes_plugins.images.settings import ImageSettings
from hermes_queue.errors import HermesQueueError
from hermes_queue.sandbox.base import Slot
from hermes_queue.sandbox.fleet import Fleet, SandboxObserver
from hermes_queue.settings import PathSettings

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SETTINGS: Mapping[str, Any] = {
    "image": BASE,
    "memory_mb": MEMORY_MB,
    # The builds of these tests need Debian's mirror; their engine has no bridge.
    "build_network": "host",
    # Its reaper must not come between a worker that is killed and what is then seen.
    "reap_s": 3600.0,
}


@pytest.fixture(scope="session")
def engines() -> Iterator[Callable[[str], EngineProcess]]:
    """Starts each kind of engine once."""
    running: dict[str, EngineProcess | NoEngine] = {}
    with contextlib.ExitStack() as stack:

        def start(kind: str) -> EngineProcess:
            if kind not in running:
                try:
                    running[kind] = _started(kind, stack)
                except NoEngine as why:
                    running[kind] = why
            found = running[kind]
            if isinstance(found, NoEngine):
                pytest.skip(f"{kind}: {found}")
            return found

        yield start


def _started(kind: str, stack: contextlib.ExitStack) -> EngineProcess:
    archive = base_tarball(PathSettings().cache)
    if os.geteuid() == 0:
        directory = stack.enter_context(engine_directory())
        engine: EngineProcess = stack.enter_context(ENGINES[kind](directory))
    else:
        engine = _existing(kind)
    asyncio.run(_import(engine.address, archive))
    return engine


def _existing(kind: str) -> EngineProcess:
    """An engine that runs on this host already. Raises NoEngine."""
    try:
        address = find_engine(None)
    except HermesQueueError as why:
        raise NoEngine(str(why)) from why
    if not address.startswith("unix://") or kind not in address:
        raise NoEngine(f"no {kind} to use: DOCKER_HOST is {address}")
    path = Path(address.removeprefix("unix://"))
    return EngineProcess(path.stem, path.parent, [])


async def _import(address: str, archive: Path) -> None:
    client = EngineClient(address)
    await client.open()
    try:
        await import_root(client, archive, BASE, environment={"PATH": PATH})
    finally:
        await client.close()


@pytest.fixture(params=list(ENGINES))
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of engine."""
    return str(request.param)


@pytest.fixture
def engine(kind: str, engines: Callable[[str], EngineProcess]) -> EngineProcess:
    """A running engine of this kind."""
    return engines(kind)


@pytest.fixture
def kill_service(engine: EngineProcess) -> Callable[[Slot, str], Awaitable[None]]:
    """End a slot's service as an operator of the engine may, or the host without memory."""

    async def kill(slot: Slot, name: str) -> None:
        client = EngineClient(engine.address)
        await client.open()
        try:
            box = await client.json(f"containers/{slot.sandbox_id}/json")
            [network] = box["NetworkSettings"]["Networks"]
            for each in (await client.json(f"networks/{network}"))["Containers"]:
                found = await client.json(f"containers/{each}/json")
                if found["Config"]["Hostname"] == name:
                    os.kill(found["State"]["Pid"], signal.SIGKILL)
                    await client.json(f"containers/{each}/wait", "POST")
        finally:
            await client.close()

    return kill


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    """A cache that slots can reach, which pytest's own directories are not."""
    with tempfile.TemporaryDirectory(prefix="hermes-queue-test-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def environment(
    engine: EngineProcess, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, str]:
    """The settings as variables, also for workers that a test starts."""
    found = {f"HERMES_QUEUE_DOCKER_{name.upper()}": str(value) for name, value in SETTINGS.items()}
    found |= {
        "HERMES_QUEUE_DOCKER_HOST": engine.address,
        "HERMES_QUEUE_PATHS_CACHE": str(cache),
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, **found}


@pytest.fixture
async def make_backend(engine: EngineProcess, cache: Path) -> AsyncIterator[Callable[..., Any]]:
    """Start backends; they are stopped after the test, and have left nothing then."""
    started: list[ContainerBackend] = []

    async def make(
        *,
        slots: int = 2,
        images: Mapping[str, Any] | None = None,
        observer: SandboxObserver | None = None,
        labels: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> SlotBench:
        section = DockerSettings(**{**SETTINGS, "host": engine.address, **settings})
        client = EngineClient(section.host)
        store = EngineImages(client, section, ImageSettings(**(images or {})), cache=cache)
        backend = ContainerBackend(
            Engine(client, section, store),
            store,
            section,
            slots=slots,
            labels=labels,
            cache=cache,
            fleet=Fleet(observer or SandboxObserver()),
            networks=EngineNetworks(client),
        )
        started.append(backend)
        await backend.start()
        return SlotBench(backend)

    yield make
    for backend in started:
        await backend.stop()
    for backend in started:
        left = await backend.list_sandboxes({"worker": backend.labels["worker"]})
        assert left == []


@pytest.fixture
async def bench(make_backend: Callable[..., Any]) -> SlotBench:
    """A backend with two slots."""
    found: SlotBench = await make_backend()
    return found
