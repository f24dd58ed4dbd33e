"""Checks of this host: isolation or provider, disk, and what dead workers left."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from hermes_queue.cli.doctor.finding import Finding, error, ok, warning
from hermes_queue.errors import HermesQueueError, TrajectoryFailure
from hermes_queue.settings import (
    LocalSandboxSettings,
    ModalSettings,
    PathSettings,
    SandboxSettings,
)

LOW_BYTES = 2 << 30
"""A dependency environment of a repository takes a few hundred megabytes."""
PROBE_BYTES = 256 << 10
MODAL_TIMEOUT_S = 20.0


def host_findings() -> Iterator[Finding]:
    """Sandbox backend, then the directories."""
    name = SandboxSettings().backend
    check = f"sandbox.{name}"
    try:
        yield asyncio.run(_backend(name, check))
    except (HermesQueueError, TrajectoryFailure) as problem:
        yield error(check, str(problem))
    except TimeoutError:
        yield error(check, f"no answer within {MODAL_TIMEOUT_S:.0f} s", "see your network")
    paths = PathSettings()
    yield _disk("disk.cache", paths.cache)
    yield _disk("disk.spool", paths.spool_dir)
    yield from _leftovers(paths)


async def _backend(name: str, check: str) -> Finding:
    if name == "local":
        return await asyncio.to_thread(_local, check)
    if name == "modal":
        from hermes_queue.sandbox.modal.account import Account

        async with asyncio.timeout(MODAL_TIMEOUT_S):  # start() could make sandboxes, which bill
            await Account(ModalSettings()).open()
        return ok(check, f"the token works, app {ModalSettings().app!r} is there")
    from hermes_queue.sandbox import make_backend

    backend = make_backend(name)
    await backend.start()
    await backend.stop()
    return ok(check, "starts and stops")


def _local(check: str) -> Finding:
    from hermes_queue.sandbox.host.isolation import find_tools, host_python, shortcomings
    from hermes_queue.sandbox.host.paths import check_cache

    settings = LocalSandboxSettings()
    cache, fenced = PathSettings().cache.absolute(), settings.isolation == "bwrap"
    check_cache(cache, fenced=fenced)
    if not fenced:
        return warning(
            check,
            "isolation is off: agents run commands as this user, with its files and network",
            "unset HERMES_QUEUE_LOCAL_ISOLATION unless you trust the agents",
        )
    tools = find_tools(cache)
    host_python()
    if lacks := shortcomings(settings):
        whats = "; ".join(lack.what for lack in lacks)
        return warning(check, f"{tools.bwrap} works, but {whats}", "; ".join(x.fix for x in lacks))
    return ok(check, f"{tools.bwrap} fences slots off")


def _disk(check: str, directory: Path) -> Finding:
    """Room, and whether a small file really can be written and synced."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / f".doctor-{secrets.token_hex(8)}"
        try:
            with probe.open("wb") as file:
                file.write(os.urandom(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as problem:
        return error(
            check,
            f"{directory}: {problem}",
            "make room or name another place: HERMES_QUEUE_PATHS_CACHE, HERMES_QUEUE_PATHS_SPOOL",
        )
    free = shutil.disk_usage(directory).free
    said = f"{free / 2**30:.1f} GB free in {directory}"
    if free < LOW_BYTES:
        remedy = "make room; the cache, but for its spool, may be deleted while no worker runs"
        return warning(check, said, remedy)
    return ok(check, said)


def _leftovers(paths: PathSettings) -> Iterator[Finding]:
    from hermes_queue.sandbox.local.registry import HostRegistry

    boxes = HostRegistry(paths.cache.absolute()).abandoned()
    records = abandoned_records(paths.spool_dir)
    if boxes:
        yield warning(
            "leftovers.sandboxes",
            f"{len(boxes)} local sandboxes of dead workers: {', '.join(boxes[:3])}",
            "any worker on this host ends them within half a minute",
        )
    if records:
        yield warning(
            "leftovers.spool",
            f"{len(records)} finished records of dead workers are not published yet",
            f"start a worker on this host with the same spool ({paths.spool_dir}) and Redis",
        )
    if not boxes and not records:
        yield ok("leftovers", "none on this host")


def abandoned_records(spool: Path) -> list[Path]:
    """Records whose worker is gone: nobody holds the lock of their directory."""
    import fcntl

    found: list[Path] = []
    for directory in spool.glob("*/*"):
        records = list(directory.glob("*.record"))
        if not records:
            continue
        try:
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            found += records
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found += records
        except OSError:
            pass
        finally:
            os.close(lock)
    return found
