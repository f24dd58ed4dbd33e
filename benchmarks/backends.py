"""What a slot costs on each backend: `python -m benchmarks.backends [NAME...]` (root, Debian).

In each round every backend has one turn, so that what else the machine does meets all: acquire a
slot, three commands, renew, release. Engines are started here, as `make test-engines` does. "All"
is the processor time of the worker, of the engine or server, and of everything in slots, counted by
control groups of version 1; "worker" is that of the process with the backend alone. A command is
`true`. Memory is proportional (PSS), of ten slots before their first command.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import ExecutionRequest, SandboxBackend, Slot, SlotSpec
from hermes_queue.settings import PathSettings

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "plugins" / "nomad" / "support")]
container_engines: Any = import_module("container_engines")

COMMANDS, HELD = 3, 10
IDLE_S = 10.0
SETTLE_S = 12.0
"""Podman ends a process for each command ten seconds later."""
GROUPS = Path("/sys/fs/cgroup/cpuacct")
OURS = "hermes-queue-bench"
"""Group of this process; those of engines begin with its name."""
OF_CONTAINERS = {"docker": "docker", "podman": "libpod_parent"}
IMAGES, ENGINE_IMAGES = "hermes_plugins.images", "hermes_plugins.containers.images"
"""Of plugins, which are there if a backend that needs them is measured."""
NAMES = ("local", "local-image", "localmodal", "localmodal-image", "docker", "podman", "nomad")


@dataclass
class Candidate:
    """One backend under measurement."""

    name: str
    backend: SandboxBackend
    spec: SlotSpec
    groups: tuple[Path, ...]
    """Control groups of all that works for it."""
    rows: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Wall time, and processor time of the worker and of all, by operation; in seconds."""

    async def __call__(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began, own, everything = time.perf_counter(), _own_s(), self.used_s()
        result = await work()
        spent = (time.perf_counter() - began, _own_s() - own, self.used_s() - everything)
        self.rows.setdefault(name, []).append(spent)
        return result

    def used_s(self) -> float:
        """Processor time of all groups."""
        return _used_s(self.groups)

    def memory_mb(self) -> float:
        """Proportional memory of all processes in the groups."""
        names = {f"/{group.relative_to(GROUPS)}" for group in self.groups}
        total = 0
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, StopIteration):
                lines = (entry / "cgroup").read_text().splitlines()
                group = next(x.split(":")[2] for x in lines if x.split(":")[1] == "cpuacct")
                if any(group == name or group.startswith(f"{name}/") for name in names):
                    total += _pss_kb(entry)
        return total / 1024

    async def turn(self) -> None:
        """One slot's life."""
        backend = self.backend
        slot = await self("acquire", partial(backend.acquire, "t", self.spec))
        for _ in range(COMMANDS):
            await self("command", partial(self._command, slot))
        slot = await self("renew", partial(backend.renew, slot))
        await self("release", partial(backend.release, slot))

    async def _command(self, slot: Slot) -> None:
        request = ExecutionRequest(slot, "true", timeout_s=300)
        [answer] = await self.backend.execute_batch([request])
        if getattr(answer, "exit_code", None) != 0:
            raise RuntimeError(f"{self.name}: {answer!r}")

    async def hold(self) -> tuple[float, float]:
        """Megabytes, and milliseconds of processor time a second, of an idle slot."""
        before = self.memory_mb()
        slots = [await self.backend.acquire("t", self.spec) for _ in range(HELD)]
        await asyncio.sleep(SETTLE_S)
        held, used = self.memory_mb(), self.used_s()
        await asyncio.sleep(IDLE_S)
        used = self.used_s() - used
        await asyncio.gather(*map(self.backend.release, slots))
        return (held - before) / HELD, 1000 * used / IDLE_S / HELD


def _used_s(groups: Iterable[Path]) -> float:
    return sum(int((group / "cpuacct.usage").read_text()) for group in groups) / 1e9


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _pss_kb(entry: Path) -> int:
    lines = (entry / "smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# --- backends -----------------------------------------------------------------------------


@contextlib.contextmanager
def _member(group: Path) -> Iterator[None]:
    """What is started meanwhile belongs to this control group; this process does not stay."""
    group.mkdir(exist_ok=True)
    home = GROUPS / OURS
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.asynccontextmanager
async def _started(name: str) -> AsyncIterator[SandboxBackend]:
    backend = make_backend(name, slots=HELD)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


@contextlib.asynccontextmanager
async def _local(name: str, archive: Path) -> AsyncIterator[Candidate]:
    spec = await _with_image(archive) if name == "local-image" else SlotSpec()
    async with _started("local") as backend:
        yield Candidate(name, backend, spec, (GROUPS / OURS,))


def _module(package: str, name: str) -> Any:
    return import_module(f"{package}.{name}")


async def _with_image(archive: Path) -> SlotSpec:
    """The base image among those of this host, and a slot that begins with it."""
    cache, images = PathSettings().cache, partial(_module, IMAGES)
    steps = images("rootfs.steps").RootfsSteps.of(cache)
    settings = images("settings").ImageSettings()
    store = images("store").ImageStore(cache / "images", settings, steps)
    config = container_engines.base_image().config
    await images("fetch.archives").import_archive(store, container_engines.BASE, archive, config)
    await steps.close()
    return SlotSpec(image=ImageSpec(container_engines.BASE))


@contextlib.asynccontextmanager
async def _localmodal(name: str, archive: Path) -> AsyncIterator[Candidate]:
    from benchmarks.parts.modal import modal_server

    spec = await _with_image(archive) if name == "localmodal-image" else SlotSpec()
    # The SDK knows one server for each process.
    with contextlib.nullcontext() if "MODAL_SERVER_URL" in os.environ else modal_server():
        async with _started("modal") as backend:
            yield Candidate(name, backend, spec, (GROUPS / OURS,))


@contextlib.asynccontextmanager
async def _engine(name: str, archive: Path) -> AsyncIterator[Candidate]:
    kind = "docker" if name == "nomad" else name
    group, containers = GROUPS / f"{OURS}-{name}", GROUPS / OF_CONTAINERS[kind]
    containers.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(container_engines.engine_directory())
        with _member(group):
            engine = stack.enter_context(container_engines.ENGINES[kind](directory))
        client = _module(ENGINE_IMAGES, "client").EngineClient(engine.address)
        await client.open()
        await _module(ENGINE_IMAGES, "archive").import_root(client, archive, container_engines.BASE)
        await client.close()
        if name == "nomad":  # its server is a thread of this process
            nomad = import_module("nomad_on_engine").nomad_on(engine, directory)
            server = await asyncio.to_thread(stack.enter_context, nomad)
            os.environ.update(server.settings(PathSettings().cache))
        os.environ["HERMES_QUEUE_DOCKER_HOST"] = engine.address
        async with _started("nomad" if name == "nomad" else "docker") as backend:
            spec = SlotSpec(image=ImageSpec(container_engines.BASE))
            yield Candidate(name, backend, spec, (GROUPS / OURS, group, containers))


MAKERS: dict[str, Any] = {
    "local": _local,
    "local-image": _local,
    "localmodal": _localmodal,
    "localmodal-image": _localmodal,
    "docker": _engine,
    "podman": _engine,
    "nomad": _engine,
}


# --- the run ------------------------------------------------------------------------------

OPERATIONS = ("acquire", "command", "renew", "release")


async def measure(names: Sequence[str], rounds: int, archive: Path) -> None:
    """Run all turns, and print one row for each backend."""
    async with contextlib.AsyncExitStack() as stack:
        making = (MAKERS[name](name, archive) for name in names)
        candidates = [await stack.enter_async_context(each) for each in making]
        for candidate in candidates:
            await candidate.turn()  # images are looked into once
            candidate.rows.clear()
        await asyncio.sleep(SETTLE_S)
        groups = {group for each in candidates for group in each.groups}
        began, busy, ours = time.perf_counter(), _busy_s(), _used_s(groups)
        for number in range(rounds):
            first = number % len(candidates)
            for candidate in candidates[first:] + candidates[:first]:
                await candidate.turn()
        ours, seconds = _used_s(groups) - ours, time.perf_counter() - began
        elsewhere = max(0.0, _busy_s() - busy - ours) / seconds
        print(f"| backend | {' | '.join(OPERATIONS)} | memory of a slot | idle |")
        for candidate in candidates:
            print(_row(candidate, await candidate.hold()), flush=True)
    print(f"{rounds} rounds, {os.cpu_count()} cores, {elsewhere:.1f} processors busy elsewhere")


def _busy_s() -> float:
    """Processor time that the whole machine has used."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    user, nice, system, _, _, interrupt, soft = map(int, words)
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")


def _row(candidate: Candidate, held: tuple[float, float]) -> str:
    cells = [candidate.name]
    for name in OPERATIONS:
        rows = candidate.rows[name]
        wall, own, everything = (1000 * statistics.median(x) for x in zip(*rows, strict=True))
        cells.append(f"{wall:.0f} ms; CPU {everything:.1f} ms, worker {own:.1f} ms")
    megabytes, idle_ms = held
    return f"| {' | '.join([*cells, f'{megabytes:.1f} MB', f'{idle_ms:.2f} ms/s'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backends",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--rounds", type=int, default=20, help="turns of each backend (20)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no such backend: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0 or not (GROUPS / "cpuacct.usage").exists():
        parser.error("needs root, and the controller `cpuacct` of control groups of version 1")
    container_engines.install_packages()
    archive = container_engines.base_tarball(PathSettings().cache)
    home = GROUPS / OURS
    home.mkdir(exist_ok=True)
    (home / "cgroup.procs").write_text(str(os.getpid()))
    try:
        with tempfile.TemporaryDirectory(prefix="hq-bench-", dir="/tmp") as cache:
            Path(cache).chmod(0o755)  # slots run as other users
            os.environ["HERMES_QUEUE_PATHS_CACHE"] = cache
            asyncio.run(measure(arguments.names, arguments.rounds, archive))
    finally:
        (GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        for group in GROUPS.glob(f"{OURS}*"):
            with contextlib.suppress(OSError):  # somebody is still in it
                group.rmdir()


if __name__ == "__main__":
    main()
