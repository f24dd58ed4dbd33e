"""Checks of what slots share with the worker: its descriptors and file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from hermes_queue.cli.doctor.finding import Finding, ok, warning
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.settings import PathSettings, SandboxSettings, WorkerSettings

SHARED_LOW_BYTES = 10 << 30
"""Slots have no quota: so much an agent writes within minutes."""


def descriptor_finding() -> Finding:
    """Whether a worker of this host may open as many files as its trajectories need."""
    from hermes_queue.sandbox.host import descriptors

    trajectories = WorkerSettings().concurrency
    if short := descriptors.shortage(trajectories):
        return warning("host.descriptors", short, descriptors.remedy(trajectories))
    said = f"a worker may have {descriptors.most()} files open"
    return ok("host.descriptors", f"{said}, enough for {trajectories} trajectories")


def shared_disk_findings(ledger: Ledger | None) -> Iterator[Finding]:
    """Whether a slot that fills its disk stops more than itself.

    Args:
        ledger: open; None = the private Redis that producers start.
    """
    if not _slots_are_here():
        return
    paths = PathSettings()
    places = {"the spool": paths.spool_dir}
    if directory := _redis_directory(ledger) if ledger else paths.cache / "embedded":
        places["Redis"] = directory
    slots = _file_system(paths.cache)
    sharing = [name for name, place in places.items() if _file_system(place) == slots]
    free = shutil.disk_usage(_existing(paths.cache)).free
    said = f"{free / 2**30:.1f} GB free where slots write, on the disk of {' and '.join(sharing)}"
    if sharing and free < SHARED_LOW_BYTES:
        yield warning(
            "disk.shared",
            f"{said}: slots have no quota, and an agent that fills the disk stops these, too",
            "make room, or give the cache a file system of its own (HERMES_QUEUE_PATHS_CACHE) and "
            "the spool another (HERMES_QUEUE_PATHS_SPOOL)",
        )
    elif sharing:
        yield ok("disk.shared", said)
    else:
        yield ok("disk.shared", "slots have a disk apart from the spool and Redis")


def _slots_are_here() -> bool:
    """Whether the backend's slots write to this host's disk."""
    from hermes_queue.sandbox import make_backend

    try:
        return not make_backend(SandboxSettings().backend).capabilities.remote
    except HermesQueueError:  # said where the backend itself is checked
        return False


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _file_system(path: Path) -> int:
    return _existing(path).stat().st_dev


def _redis_directory(ledger: Ledger) -> Path | None:
    """Where a Redis on this host keeps its data, if it can be told. It works in that directory."""
    client: Any = ledger.client
    try:
        server = Path("/proc", str(client.info("server")["process_id"]))
        # The number is of this host only if the server is: then it has that name here.
        if "redis" in (server / "comm").read_text():
            return Path(os.readlink(server / "cwd"))
    except (OSError, redis.RedisError, KeyError):
        pass
    return None
