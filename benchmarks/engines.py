"""What slots in containers cost: `python -m benchmarks.engines docker|podman` (as root).

Starts an engine of its own, as `make test-engines` does, in a control group that counts its
processor time; the time in containers is not part of it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_queue.images.engine.archive import import_root
from hermes_queue.images.engine.client import EngineClient
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import ExecutionRequest, Slot, SlotSpec
from hermes_queue.sandbox.docker.engine import make_backend
from hermes_queue.settings import DockerSettings, PathSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
container_engines: Any = import_module("container_engines")

ROUNDS = 20
GROUP = Path("/sys/fs/cgroup/cpuacct/hermes-queue-bench")


class Meter:
    """Wall time, and processor time of this process and of the engine, per call."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[float, float, float]]] = {}

    async def __call__(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began, own, engine = time.perf_counter(), _own_s(), _engine_s()
        result = await work()
        spent = (time.perf_counter() - began, _own_s() - own, _engine_s() - engine)
        self.rows.setdefault(name, []).append(spent)
        return result

    def show(self) -> None:
        for name, rows in self.rows.items():
            wall, own, engine = (1000 * statistics.median(each) for each in zip(*rows, strict=True))
            print(f"{name:<8} wall {wall:6.0f} ms, worker {own:5.1f} ms, engine {engine:5.0f} ms")


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _engine_s() -> float:
    return int((GROUP / "cpuacct.usage").read_text()) / 1e9


async def measure(address: str, archive: Path, cache: Path) -> None:
    client = EngineClient(address)
    await client.open()
    await import_root(client, archive, container_engines.BASE)
    await client.close()
    settings = DockerSettings(host=address, image=container_engines.BASE, memory_mb=256)
    backend = make_backend(settings, slots=ROUNDS, cache=cache)
    await backend.start()
    meter = Meter()
    spec = SlotSpec(image=ImageSpec(container_engines.BASE))
    await backend.release(await backend.acquire("first", spec))

    async def command(slot: Slot) -> None:
        [answer] = await backend.execute_batch([ExecutionRequest(slot, "true", timeout_s=300)])
        assert getattr(answer, "exit_code", None) == 0, answer

    for _ in range(ROUNDS):
        slot = await meter("acquire", partial(backend.acquire, "t", spec))
        for _ in range(3):
            await meter("command", partial(command, slot))
        slot = await meter("renew", partial(backend.renew, slot))
        await meter("release", partial(backend.release, slot))
    before = _resident_mb()
    slots = [await backend.acquire("t", spec) for _ in range(10)]
    meter.show()
    print(f"memory of a slot, engine's processes included: {(_resident_mb() - before) / 10:.1f} MB")
    await asyncio.gather(*map(backend.release, slots))
    await backend.stop()


def _resident_mb() -> float:
    """Proportional memory of the engine and of all containers' first processes."""
    total = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if any(word in command for word in (b"containerd", b"dockerd", b"podman", b"conmon")):
                total += _pss_kb(entry)
            elif b"sleep\x0086400" in command or b"sleep 86400" in command:
                total += _pss_kb(entry)
        except OSError:
            continue
    return total / 1024


def _pss_kb(entry: Path) -> int:
    lines = (entry / "smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    kind = sys.argv[1]
    container_engines.install_packages()
    archive = container_engines.base_tarball(PathSettings().cache)
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))
    try:
        with container_engines.engine_directory() as directory:
            with container_engines.ENGINES[kind](directory) as engine:
                (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
                with tempfile.TemporaryDirectory() as cache:
                    asyncio.run(measure(engine.address, archive, Path(cache)))
        print(f"{kind}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    finally:
        (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        subprocess.run(["rmdir", str(GROUP)], check=False)


if __name__ == "__main__":
    main()
