"""A Modal-compatible server in a process of its own, and who used how much CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def modal_server() -> Iterator[int]:
    """Its pid; the SDK of this process and its children talks to it. Gone at the end."""
    program = "from hermes_queue.cli import main; main()"
    command = [sys.executable, "-c", program, "localmodal", "--worker-ports"]
    with tempfile.TemporaryDirectory(prefix="hq-bench-modal-") as directory:
        Path(directory).chmod(0o755)
        server = subprocess.Popen(
            [*command, "--root", directory],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert server.stdout
        try:
            for _ in range(3):
                name, given, value = server.stdout.readline().partition("=")
                if not given:
                    raise SystemExit("hermes-queue localmodal does not start here")
                os.environ[name.removeprefix("export ")] = value.strip()
            yield server.pid
        finally:
            server.terminate()
            server.wait()


def cpu_s(server: int) -> float:
    """User and system time so far of this process, the server, and their ended children."""
    fields = Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S + sum(os.times()[:4])


@dataclass
class Meter:
    """Wall and CPU time of what ran under it, added up."""

    server: int
    wall_s: float = 0.0
    cpu_s: float = 0.0
    count: int = 0

    @contextmanager
    def measuring(self, count: int = 1) -> Iterator[None]:
        """The block does the thing `count` times."""
        wall, cpu = time.perf_counter(), cpu_s(self.server)
        yield
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += cpu_s(self.server) - cpu
        self.count += count

    def __str__(self) -> str:
        each = 1000 / max(1, self.count)
        return f"{self.wall_s * each:9.1f} ms wall {self.cpu_s * each:8.1f} ms CPU"


def show(name: str, meter: Meter, base: Meter | None = None) -> None:
    """Print a line: per thing, and against the one that it is compared with."""
    ratio = ""
    if base is not None:
        wall, cpu = (
            (meter.wall_s / meter.count) / (base.wall_s / base.count),
            (meter.cpu_s / meter.count) / max(base.cpu_s / base.count, 1e-9),
        )
        ratio = f"   x {wall:5.2f} wall, x {cpu:5.2f} CPU"
    print(f"{name:<52} {meter}{ratio}", flush=True)
