"""What the soak samples, and from how much on a rise counts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import Server
from benchmarks.soak.work import NAME
from hermes_queue.ledger import Ledger
from hermes_queue.results.consumers import consumer_groups

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FLOORS: Mapping[str, float] = {
    "per_s": float("inf"),
    "redis_mb": 2,
    "redis_keys": 500,
    "aof_mb": 16,
    "stream_groups": 200,
    "consumer_behind": 200,
    "archive_bytes_each": 20,
    "spool_files": 4,
    "cache_mb": 4,
    "slot_files": 200,
    "descriptors": 4,
    "threads": 2,
    "rss_mb": 4,
    "cpu_ms_each": 0.2,
}
"""Rises below are noise, by the name of a quantity or its end."""


def floor(name: str) -> float:
    """That of a quantity."""
    return next(value for end, value in FLOORS.items() if name.endswith(end))


@dataclass
class Sampler:
    """Takes samples of a running factory."""

    server: Server
    ledger: Ledger
    directory: Path
    """Of the worker's archive, spool and cache."""
    pids: Mapping[str, int]
    """Processes by name."""
    _used_s: dict[str, float] = field(default_factory=dict)
    _finished: int = 0
    _at: float = field(default_factory=time.monotonic)

    def take(self, finished: int) -> dict[str, float]:
        """All quantities, with so many trajectories finished."""
        found = {**self._redis(), **dict(self._files(finished))}
        for name, pid in self.pids.items():
            found |= {f"{name}_{what}": value for what, value in _process(pid)}
        more, self._finished = finished - self._finished, finished
        passed_s, self._at = time.monotonic() - self._at, time.monotonic()
        found["per_s"] = more / passed_s
        for name, pid in {**self.pids, "redis": self.server.pid}.items():
            used_s = cpu_s(pid)
            if name in ("worker", "redis") and more and name in self._used_s:
                found[f"{name}_cpu_ms_each"] = 1000 * (used_s - self._used_s[name]) / more
            self._used_s[name] = used_s
        return found

    def _redis(self) -> dict[str, float]:
        client: Any = self.server.client
        info = client.info()
        groups = consumer_groups(self.ledger)
        return {
            "redis_mb": info["used_memory"] / 1e6,
            "redis_keys": client.dbsize(),
            "redis_rss_mb": info["used_memory_rss"] / 1e6,
            "aof_mb": info.get("aof_current_size", 0) / 1e6,
            "stream_groups": client.xlen(self.ledger.key("results")),
            "consumer_behind": sum(each.behind + each.pending for each in groups),
        }

    def _files(self, finished: int) -> Iterator[tuple[str, float]]:
        runs = (self.directory / "archive").glob(f"{NAME}*")
        archived = sum(size for run in runs for _, size in files(run))
        # It grows with what it archives; that each trajectory takes as much as ever is the point.
        yield "archive_bytes_each", archived / max(1, finished)
        spooled = [path for path, _ in files(self.directory / "spool") if path.suffix != ""]
        yield "spool_files", len(spooled)
        cached = list(files(self.directory / "cache"))
        yield "cache_mb", sum(size for _, size in cached) / 1e6
        yield "slot_files", len(cached)


def files(directory: Path) -> Iterator[tuple[Path, int]]:
    """All files below, with their sizes; those that vanish meanwhile are left out."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            try:
                yield path, path.lstat().st_size
            except OSError:
                continue


def _process(pid: int) -> Iterator[tuple[str, float]]:
    root = Path(f"/proc/{pid}")
    pages = int((root / "statm").read_text().split()[1])
    yield "rss_mb", pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    yield "descriptors", len(list((root / "fd").iterdir()))
    yield "threads", len(list((root / "task").iterdir()))


def cpu_s(pid: int) -> float:
    """Seconds of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / TICKS_PER_S
