"""Checks of this host: isolation or provider, disks, files, object store, leftovers of workers."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from hermes_queue.bodies.store import ObjectStore
from hermes_queue.cli.doctor import Finding, error, ok, warning
from hermes_queue.disk.durable import replaced
from hermes_queue.disk.locks import is_held
from hermes_queue.errors import HermesQueueError, TrajectoryFailure
from hermes_queue.ledger import Ledger
from hermes_queue.sandbox import find_backend, make_backend
from hermes_queue.sandbox.host import descriptors
from hermes_queue.sandbox.offers import Condition
from hermes_queue.settings import (
    PathSettings,
    RedisSettings,
    SandboxSettings,
    StoreSettings,
    WorkerSettings,
)

LOW_BYTES = 2 << 30
"""A dependency environment of a repository takes a few hundred megabytes."""
SHARED_LOW_BYTES = 10 << 30
"""Slots have no quota: an agent can write this much within minutes."""
PROBE_BYTES = 256 << 10


def host_findings() -> Iterator[Finding]:
    """Check the sandbox backend, then the directories."""
    name = SandboxSettings().backend
    try:
        for found in asyncio.run(_conditions(name)):
            if found.remedy:
                yield warning(found.check, found.message, found.remedy)
            else:
                yield ok(found.check, found.message)
    except (HermesQueueError, TrajectoryFailure) as problem:
        yield error(f"sandbox.{name}", str(problem))
    paths = PathSettings()
    yield _disk("disk.cache", paths.cache)
    yield _disk("disk.spool", paths.spool_dir)
    yield _leftovers(paths.spool_dir)


async def _conditions(name: str) -> list[Condition]:
    if check := find_backend(name).check:
        return [condition async for condition in check()]
    backend = make_backend(name)
    await backend.start()
    await backend.stop()
    return [Condition(f"sandbox.{name}", "starts and stops")]


def _disk(check: str, directory: Path) -> Finding:
    """Check free space, and that a small file can be written and synced."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / f".doctor-{secrets.token_hex(8)}"
        try:
            with replaced(probe, probe.with_suffix(".part")) as draft:
                draft.write_bytes(os.urandom(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as problem:
        return error(
            check,
            f"{directory}: {problem}",
            "free some space or choose another place: HERMES_QUEUE_PATHS_CACHE, "
            "HERMES_QUEUE_PATHS_SPOOL",
        )
    free = shutil.disk_usage(directory).free
    text = f"{free / 2**30:.1f} GB free in {directory}"
    if free < LOW_BYTES:
        remedy = "free some space; the cache except its spool may be deleted while no worker runs"
        return warning(check, text, remedy)
    return ok(check, text)


def _leftovers(spool: Path) -> Finding:
    if records := abandoned_records(spool):
        return warning(
            "leftovers.spool",
            f"{len(records)} files with finished records of dead workers are not published yet",
            f"start a worker on this host with the same spool ({spool}) and Redis",
        )
    return ok("leftovers", "no finished record of a dead worker on this host")


def abandoned_records(spool: Path) -> list[Path]:
    """Files with records of dead workers: nobody holds the lock of their directory."""
    found: list[Path] = []
    for directory in spool.glob("*/*"):
        records = [*directory.glob("*.record"), *directory.glob("*.records")]
        with suppress(OSError):
            if records and not is_held(directory / "lock"):
                found += records
    return found


def descriptor_finding() -> Finding:
    """Check that a worker of this host may open as many files as its trajectories need."""
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


def store_findings() -> Iterator[Finding]:
    """Write, read and delete a small object, as this host's workers and readers would.

    Yields nothing without a configured store: all records are in Redis then.
    """
    url = RedisSettings().url
    redis_url = url.get_secret_value() if url else "unix:"  # embedded: everything runs on this host
    try:
        store = ObjectStore.from_settings(StoreSettings(), redis_url)
        if store is None:
            return
        store.probe()
    except HermesQueueError as problem:
        yield error("store", str(problem), "see docs/object-store.md")
        return
    yield ok("store", f"{store.url}: an object can be written, read and deleted")
