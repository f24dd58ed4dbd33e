"""Limits of a slot by control groups, v1 or v2, where they are writable.

Memory and processes are limited. Processor time is counted, and divided equally between the
slots that need it, regardless of their numbers of processes.

Where control groups are not writable (ordinary users without delegation, most containers),
`process_limits` sets them per process instead. Those limit one process, not the slot: ten
processes may use ten times the memory, allocations fail instead of the kernel ending the command
with 137, and memory shared or mapped from files is not counted.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from hermes_queue.sandbox.host import descriptors
from hermes_queue.sandbox.host.paths import SLOT_UID, is_root
from hermes_queue.sandbox.host.processes import read_at_once

logger = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")
_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Before each try to delete a group; there is no later try."""
_SHARES_V1, _WEIGHT_V2 = 1024, 100
"""The kernel's defaults: a slot gets as much as any other group of the host."""
_PERIOD_US = 100_000
_USAGE_V1, _USAGE_V2 = "cpuacct.usage", "cpu.stat"
ProcessLimit = tuple[int, int, int]
"""Resource, soft and hard limit; -1 = the one that a process has."""
NPROC_PER_NAMESPACE = (5, 14)
"""Since this kernel, RLIMIT_NPROC counts per user namespace, hence per slot."""


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The groups of one slot: one on v2, one per hierarchy on v1."""

    groups: tuple[Path, ...]
    usage: Path | None = None
    """The kernel's file with their processor time, if there is one."""

    def moves(self) -> str:
        """Shell commands that move the shell into the groups and set a command's limits."""
        moves = "".join(f'echo 0 >"{group}/cgroup.procs" || exit 125; ' for group in self.groups)
        limit = descriptors.limit_of_commands()
        return moves if limit is None else f"{moves}ulimit -S -n {limit}; "

    def enter_prefix(self) -> list[str]:
        """A command prefix that moves itself into the groups and becomes the command."""
        return ["/bin/sh", "-c", self.moves() + 'exec "$@"', "sh"]

    def members(self) -> set[int]:
        """Pids of the processes in them."""
        found: set[int] = set()
        for group in self.groups:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
        return found

    def cpu_s(self) -> float | None:
        """Processor seconds of all processes so far in them; None if the kernel does not count."""
        if self.usage is None:
            return None
        try:
            text = read_at_once(str(self.usage))
        except OSError:
            return None
        if self.usage.name == _USAGE_V1:
            return int(text) / 1e9
        return int(text.split(maxsplit=2)[1]) / 1e6  # usage_usec is its first line

    def remove(self) -> None:
        """Delete the groups; their processes must be dead. Blocking."""
        remove_groups(self.groups)


def remove_groups(groups: tuple[Path, ...]) -> None:
    """Delete groups by path; dying processes keep them busy, for seconds on a busy machine."""
    for group in groups:
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            try:
                group.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                continue
            break
        else:
            logger.warning(
                "control group %s could not be removed", group, extra={"action": "cgroup_left"}
            )


def create(
    name: str, *, memory_mb: int, max_pids: int, cpus: float | None = None
) -> ControlGroups | None:
    """The groups of a new slot, 0 = unlimited; None if they are not writable.

    `cpus`: the most cores that it uses, where the kernel can limit that; None = no limit.
    """
    if not available():
        return None
    try:
        groups = _create(name, memory_mb, max_pids)
    except OSError as error:
        logger.warning(
            "no control groups for %s: %s", name, error, extra={"action": "cgroup_unavailable"}
        )
        return None
    if cpus is not None:
        _limit_cpus(groups, cpus)
    return groups


def _limit_cpus(groups: ControlGroups, cpus: float) -> None:
    quota_us = max(1000, round(cpus * _PERIOD_US))
    for group in groups.groups:
        for name, text in (
            ("cpu.max", f"{quota_us} {_PERIOD_US}"),
            ("cpu.cfs_period_us", str(_PERIOD_US)),
            ("cpu.cfs_quota_us", str(quota_us)),
        ):
            if (group / name).exists():
                try:
                    (group / name).write_text(text)
                except OSError as error:  # A group above allows less.
                    extra = {"action": "cgroup_unavailable"}
                    logger.warning(
                        "%s is not limited to %g cores: %s", group, cpus, error, extra=extra
                    )


def available() -> bool:
    """Whether this process may create groups and move processes into them."""
    return _probe()[0]


def shares_processors() -> bool:
    """Whether each slot gets an equal share of the processors; False without groups, too."""
    return _probe()[1]


@functools.cache
def _probe() -> tuple[bool, bool]:
    """Whether groups are available, and whether they divide processor time."""
    name = f"hermes-queue-probe-{uuid.uuid4().hex[:8]}"
    try:
        probe = _create(name, 64, 64)
    except OSError:
        return False, False
    try:
        works = all(_can_enter(group) for group in probe.groups)
        weights = ("cpu.shares", "cpu.weight")
        shared = any((group / name).exists() for group in probe.groups for name in weights)
    finally:
        probe.remove()
    return works, works and shared


def _can_enter(group: Path) -> bool:
    """Whether a slot's process may enter it through our descriptor.

    Before 2022 (CVE-2021-4197) kernels went by the rights of who writes.
    """
    with (group / "cgroup.procs").open("wb") as procs:
        done = subprocess.run(
            ["/bin/sh", "-c", "echo 0"],
            stdout=procs,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=False,
            user=SLOT_UID if is_root() else None,
        )
    return done.returncode == 0


def _create(name: str, memory_mb: int, max_pids: int) -> ControlGroups:
    made: list[Path] = []
    try:
        if (MOUNT / "cgroup.controllers").exists():  # version 2
            made.append(_new_group(_parent_v2(), name))
            _limit_v2(made[0], memory_mb, max_pids)
            usage = made[0] / _USAGE_V2
        else:
            for controller in ("memory", "pids"):
                made.append(_new_group(_parent_v1(controller), name))
            _limit_v1(made[0], memory_mb)
            if max_pids:
                (made[1] / "pids.max").write_text(str(max_pids))
            made += _processor_groups_v1(name)
            usage = made[-1] / _USAGE_V1
    except OSError:
        remove_groups(tuple(made))
        raise
    return ControlGroups(tuple(made), usage if usage.exists() else None)


def _processor_groups_v1(name: str) -> list[Path]:
    """Groups of `cpu` and `cpuacct`, which most systems keep in one hierarchy."""
    made = []
    parents = (_parent_v1(controller).resolve() for controller in ("cpu", "cpuacct"))
    for parent in dict.fromkeys(parents):
        with contextlib.suppress(OSError):  # Slots work without; the worker has warned.
            made.append(_new_group(parent, name))
            (made[-1] / "cpu.shares").write_text(str(_SHARES_V1))
    return made


def _new_group(parent: Path, name: str) -> Path:
    group = parent / name
    group.mkdir()
    return group


def _limit_v2(group: Path, memory_mb: int, max_pids: int) -> None:
    if memory_mb:
        (group / "memory.max").write_text(str(memory_mb << 20))
        with contextlib.suppress(OSError):  # Absent where the kernel does not account swap.
            (group / "memory.swap.max").write_text("0")
    if max_pids:
        (group / "pids.max").write_text(str(max_pids))
    with contextlib.suppress(OSError):  # Absent where the parent does not delegate `cpu`.
        (group / "cpu.weight").write_text(str(_WEIGHT_V2))


def _limit_v1(group: Path, memory_mb: int) -> None:
    if memory_mb:
        limit = str(memory_mb << 20)
        (group / "memory.limit_in_bytes").write_text(limit)
        with contextlib.suppress(OSError):
            (group / "memory.memsw.limit_in_bytes").write_text(limit)


def _own_path(controller: str) -> str:
    """This process's group in one hierarchy ("" = v2), relative to the mount."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") or (not controller and not controllers):
            return path.lstrip("/")
    return ""


def _parent_v1(controller: str) -> Path:
    own = MOUNT / controller / _own_path(controller)
    return own if own.is_dir() else MOUNT / controller


def _parent_v2() -> Path:
    """The nearest group that delegates the memory and pids controllers to its children.

    A group with processes in it cannot (except the root), so it is usually our parent.
    """
    own = MOUNT / _own_path("")
    for group in (own, own.parent, MOUNT):
        with contextlib.suppress(OSError):
            enabled = (group / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(enabled) and os.access(group, os.W_OK):
                if "cpu" not in enabled:
                    with contextlib.suppress(OSError):  # Refused where it was not delegated.
                        (group / "cgroup.subtree_control").write_text("+cpu")
                return group
    raise PermissionError("no writable control group delegates the memory and pids controllers")


def process_limits(
    groups: ControlGroups | None, *, memory_mb: int, max_pids: int
) -> tuple[ProcessLimit, ...]:
    """Limits of each process of a slot, 0 = unlimited: those that its groups do not set."""
    limits = []
    if groups is None and memory_mb:
        # Not the address space: runtimes that reserve it (JVM, Node, Go) break under that.
        limits.append((resource.RLIMIT_DATA, memory_mb << 20, memory_mb << 20))
    if groups is None and max_pids and _kernel() >= NPROC_PER_NAMESPACE:
        limits.append((resource.RLIMIT_NPROC, max_pids, max_pids))
    if open_files := descriptors.limit_of_commands():
        limits.append((resource.RLIMIT_NOFILE, open_files, -1))
    return tuple(limits)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
