"""The local sandboxes on this host: one directory each, locked by its worker.

    <cache>/slots/<sandbox id>/sandbox.json     labels and creation time
                               lock             flocked while the worker lives
                               <slot id>/       the slot's writable directories
                               <slot id>.json   its first process and control groups

A dead worker cannot hold the lock, however it died, so any later worker (or the reaper) can
distinguish leftovers from live sandboxes and end them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hermes_queue.disk.locks import is_held, try_hold
from hermes_queue.sandbox.base import SandboxInfo
from hermes_queue.sandbox.host.cgroups import ControlGroups, remove_groups
from hermes_queue.sandbox.host.paths import remove_tree, shared_directory
from hermes_queue.sandbox.host.processes import kill_mentioning, kill_process, kill_tree

logger = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostRegistry:
    """The sandboxes below one cache directory. All methods block."""

    def __init__(self, cache: Path, *, remove: Callable[[Path], None] = remove_tree) -> None:
        """`remove` deletes the files of slots at a path; raises OSError if it cannot."""
        self._root = cache / "slots"
        self._remove = remove
        self._locks: dict[str, int] = {}

    def open(self, sandbox_id: str, labels: Mapping[str, str]) -> Path:
        """Create the directory of a new sandbox and lock it from now on."""
        shared_directory(self._root, 0o711)
        directory = self._root / sandbox_id
        directory.mkdir()
        directory.chmod(0o711)
        # Locked before it gets its name: others take a free lock for a dead worker.
        unheld = directory / "lock.unheld"
        lock = try_hold(unheld)
        assert lock is not None  # noqa: S101 - the directory is new
        unheld.rename(directory / "lock")
        self._locks[sandbox_id] = lock
        record = {"labels": dict(labels), "created": time.time(), **_here()}
        _write(directory / "sandbox.json", record)
        return directory

    def sandboxes(self) -> list[SandboxInfo]:
        """All sandboxes that were not ended, also those of dead workers."""
        found = []
        for path in sorted(self._root.glob("*/sandbox.json")):
            if record := _read(path):
                found.append(SandboxInfo(path.parent.name, record["labels"], record["created"]))
        return found

    def end(self, sandbox_id: str) -> None:
        """Kill the sandbox's slots and delete all its files. No-op if it is gone."""
        directory = self._root / sandbox_id
        if "/" in sandbox_id or sandbox_id in {"", ".", ".."} or not directory.is_dir():
            return
        for record in directory.glob("*.json"):
            if record.name != "sandbox.json":
                forget_slot(record, remove=self._remove)
        # A worker that is killed while it starts a slot leaves a bwrap without a record, which
        # waits for its dead parent for ever.
        kill_mentioning(f"{directory}/")
        (directory / "sandbox.json").unlink(missing_ok=True)
        self._remove(directory)
        if (lock := self._locks.pop(sandbox_id, None)) is not None:
            os.close(lock)

    def abandoned(self) -> list[str]:
        """Sandboxes of dead workers, which `reclaim` would end."""
        return [
            directory.name
            for directory in sorted(self._root.glob("*/"))
            if directory.name not in self._locks and _is_abandoned(directory)
        ]

    def reclaim(self) -> list[str]:
        """End the sandboxes of dead workers; returns their ids."""
        ended = []
        for name in self.abandoned():
            extra = {"action": "reclaim"}
            logger.info("deleting the files of sandbox %s, whose worker died", name, extra=extra)
            try:
                self.end(name)
            except OSError as error:
                extra = {"action": "sandbox_left"}
                logger.warning("cannot remove leftover sandbox %s: %s", name, error, extra=extra)
            else:
                ended.append(name)
        return ended


def record_slot(
    directory: Path, slot_id: str, *, pid: int, started: int, groups: ControlGroups | None
) -> None:
    """Record the process and groups to end with the slot. Pid 0 = it has no first process."""
    paths = [str(group) for group in groups.groups] if groups else []
    record = {"pid": pid, "started": started, "groups": paths, **_here()}
    _write(directory / f"{slot_id}.json", record)


def forget_slot(path: Path, *, remove: Callable[[Path], None] = remove_tree) -> None:
    """Kill the processes in the record at `path`; delete the slot's directories and the record."""
    record = _read(path)
    # Pids are valid only in their namespace and boot. In other ones the kernel has ended the
    # processes already; here the same pid could belong to an innocent process.
    if record and all(record.get(key) == value for key, value in _here().items()):
        if record["pid"]:
            kill_process(record["pid"], record["started"])
        else:
            kill_tree(path.stem, None)
        remove_groups(tuple(Path(group) for group in record["groups"]))
    remove(path.with_suffix(""))
    path.unlink(missing_ok=True)


def _here() -> dict[str, str]:
    return {"boot": BOOT_ID.read_text().strip(), "namespace": os.readlink("/proc/self/ns/pid")}


def _is_abandoned(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        if (directory / "lock").exists():
            return not is_held(directory / "lock")
        # Its worker is between creating the directory and the lock, or died there.
        return time.time() - directory.stat().st_mtime > 60
    return False


def _write(path: Path, record: Mapping[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(record))
    unfinished.rename(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record
