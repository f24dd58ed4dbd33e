"""What the server of our pages costs: memory, a comparison, commands that Redis is asked."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.measuring import metered
from benchmarks.plugins.view.ours import COMMAND, GROUP, SAMPLES, Viewer
from benchmarks.processes import Server, process

LOOKERS = 20
WATCHED_S = 20.0
SETTLE_S = 6.0
FORGOTTEN_S = 20.0
"""So long after the last request, nobody looks."""
COMPARISONS = 5


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory of a process, now and at its most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {name: value.split()[0] for name, _, value in (each.partition(":") for each in lines)
             if name in ("VmRSS", "VmHWM")}  # fmt: skip
    return {"resident_mb": int(sizes["VmRSS"]) / 1024, "most_mb": int(sizes["VmHWM"]) / 1024}


def comparison(viewer: Viewer) -> dict[str, float]:
    """CPU of the whole server for a group compared: of the first time, and at its most."""
    used, waited = [], []
    for _ in range(COMPARISONS):
        with metered(view=viewer.pid) as meter:
            found = viewer.api(f"/api/groups/{GROUP}/compare")
        used.append(meter.cpu_s["view"])
        waited.append(meter.wall_s)
    assert len(found["samples"]) == SAMPLES
    return {"first_cpu_s": used[0], "cpu_s": max(used), "wall_s": max(waited)}


# --- commands of Redis -------------------------------------------------------------------------


def commands(server: Server, seconds: float = WATCHED_S) -> float:
    """How many commands somebody else sends meanwhile, those within scripts included."""
    before = _asked(server)
    time.sleep(seconds)
    return _asked(server) - before - 1  # the first question itself


def _asked(server: Server) -> float:
    return sum(float(row["calls"]) for row in server.client.info("commandstats").values())


def by_lookers(server: Server, viewer: Viewer) -> dict[str, float]:
    """Commands in 20 s while nobody looks, while 20 do, and while one `top` does."""
    time.sleep(FORGOTTEN_S)
    idle = commands(server)
    with looking(viewer):
        time.sleep(SETTLE_S)
        many = commands(server)
    time.sleep(SETTLE_S)
    with top(server):
        time.sleep(SETTLE_S)
        one = commands(server)
    return {"nobody": idle, "lookers": many, "top": one}


@contextmanager
def looking(viewer: Viewer) -> Iterator[None]:
    """20 browsers that follow the deployment, as a page does."""
    streams = [viewer.stream("/api/events") for _ in range(LOOKERS)]

    def follow(number: int) -> None:
        with suppress(Exception):
            while streams[number].readline():
                pass

    threads = [threading.Thread(target=follow, args=[n], daemon=True) for n in range(LOOKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
        assert all(thread.is_alive() for thread in threads), "a stream has ended"
    finally:
        for stream in streams:
            with suppress(Exception):
                stream.close()


@contextmanager
def top(server: Server) -> Iterator[None]:
    """`hermes-queue top` in a terminal."""
    own, terminal = pty.openpty()
    environment = os.environ | {"HERMES_QUEUE_REDIS_URL": server.url, "TERM": "xterm"}

    def read() -> None:
        with suppress(OSError):
            while os.read(own, 65536):
                pass

    options = {"stdin": terminal, "stdout": terminal, "stderr": subprocess.DEVNULL}
    with process([*COMMAND, "top"], env=environment, **options):
        os.close(terminal)
        threading.Thread(target=read, daemon=True).start()
        yield
