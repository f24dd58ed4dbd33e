"""Checks of this host: isolation or provider, disk, and leftovers of dead workers."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_queue.cli.doctor.finding import Finding, error, ok, warning
from hermes_queue.disk.durable import replaced
from hermes_queue.disk.locks import is_held
from hermes_queue.errors import HermesQueueError, TrajectoryFailure
from hermes_queue.settings import PathSettings, SandboxSettings

if TYPE_CHECKING:
    from hermes_queue.sandbox.offers import Condition

LOW_BYTES = 2 << 30
"""A dependency environment of a repository takes a few hundred megabytes."""
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
    from hermes_queue.sandbox import find_backend, make_backend
    from hermes_queue.sandbox.offers import Condition

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
            f"{len(records)} finished records of dead workers are not published yet",
            f"start a worker on this host with the same spool ({spool}) and Redis",
        )
    return ok("leftovers", "no finished record of a dead worker on this host")


def abandoned_records(spool: Path) -> list[Path]:
    """Records of dead workers: nobody holds the lock of their directory."""
    found: list[Path] = []
    for directory in spool.glob("*/*"):
        records = list(directory.glob("*.record"))
        with suppress(OSError):
            if records and not is_held(directory / "lock"):
                found += records
    return found
