"""Checks of the resources that slots share with the worker: file descriptors and file system."""

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
"""Slots have no quota: an agent can write this much within minutes."""


def descriptor_finding() -> Finding:
    """Check that a worker of this host may open as many files as its trajectories need."""
    from hermes_queue.sandbox.host import descriptors

    trajectories = WorkerSettings().concurrency
    if short := descriptors.shortage(trajectories):
        return warning("host.descriptors", short, descriptors.remedy(trajectories))
    text = f"a worker may have {descriptors.most()} files open"
    return ok("host.descriptors", f"{text}, enough for {trajectories} trajectories")


def shared_disk_findings(ledger: Ledger | None) -> Iterator[Finding]:
    """Check whether a slot that fills its disk also stops the spool or Redis.

    Args:
        ledger: an open ledger; None = the private Redis that producers start.
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
    text = f"{free / 2**30:.1f} GB free where slots write, on the disk of {' and '.join(sharing)}"
    if sharing and free < SHARED_LOW_BYTES:
        yield warning(
            "disk.shared",
            f"{text}: slots have no quota, so an agent that fills the disk stops these, too",
            "free some space, or put the cache (HERMES_QUEUE_PATHS_CACHE) and the spool "
            "(HERMES_QUEUE_PATHS_SPOOL) on separate file systems",
        )
    elif sharing:
        yield ok("disk.shared", text)
    else:
        yield ok("disk.shared", "slots do not share a disk with the spool or Redis")


def _slots_are_here() -> bool:
    """Whether the backend's slots write to this host's disk."""
    from hermes_queue.sandbox import make_backend

    try:
        return not make_backend(SandboxSettings().backend).capabilities.remote
    except HermesQueueError:  # reported by the check of the backend
        return False


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _file_system(path: Path) -> int:
    return _existing(path).stat().st_dev


def _redis_directory(ledger: Ledger) -> Path | None:
    """Data directory of a Redis on this host, which is its working directory; None if unknown."""
    client: Any = ledger.client
    try:
        server = Path("/proc", str(client.info("server")["process_id"]))
        # The process id belongs to this host only if the server runs here under that name.
        if "redis" in (server / "comm").read_text():
            return Path(os.readlink(server / "cwd"))
    except (OSError, redis.RedisError, KeyError):
        pass
    return None
