"""Processes of this host as /proc shows them: is it still the same one, and kill a tree."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PF_EXITING = 0x4
MAX_ROUNDS = 50

COMMAND_VARIABLE = "HQ_COMMAND_ID"
"""Set to `<slot id>.<n>` in every command, so that its strays can be found."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What is needed of /proc/<pid>/stat. Pids are those of the reader's namespace."""

    pid: int
    state: str
    parent: int
    session: int
    flags: int
    started: int
    """Clock ticks after boot; together with the pid it names a process for good."""

    @property
    def is_alive(self) -> bool:
        """False from the moment the process began to exit, before its children die."""
        return self.state not in "ZX" and not self.flags & PF_EXITING


def read_stat(pid: int) -> ProcessStat | None:
    """The process `pid`, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold blanks and parentheses of its own.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        flags=int(fields[6]),
        started=int(fields[19]),
    )


def is_running(pid: int, started: int) -> bool:
    """Whether the process that had `pid` and start time `started` still runs."""
    stat = read_stat(pid)
    return stat is not None and stat.started == started and stat.is_alive


def kill_process(pid: int, started: int) -> None:
    """SIGKILL exactly this process; no-op when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_running(pid, started):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def kill_tree(marker: str, root: int | None, pid_namespace: str | None = None) -> bool:
    """Kill `root`, its descendants and session, and all processes marked with `marker`.

    A process is marked when `HQ_COMMAND_ID` in its environment is `marker`, or begins
    with it and a dot. With `pid_namespace` (the link target of /proc/<pid>/ns/pid)
    marked processes elsewhere are left alone. All are stopped before the first is
    killed, so that none can fork away; blocking, call it in a thread.

    Returns:
        Whether nothing was left at the end. False means that something forks faster
        than it can be stopped, and the whole slot has to go.
    """
    found: dict[int, int] = {}
    for _ in range(MAX_ROUNDS):
        fresh = [s for s in _victims(marker, root, pid_namespace, found) if s.pid not in found]
        if not fresh:
            break
        for stat in fresh:
            _send(stat.pid, signal.SIGSTOP)
            found[stat.pid] = stat.started
    else:
        for pid, started in found.items():
            kill_process(pid, started)
        return False
    for pid, started in found.items():
        kill_process(pid, started)
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _victims(
    marker: str, root: int | None, pid_namespace: str | None, known: dict[int, int]
) -> list[ProcessStat]:
    stats = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) and stat.is_alive:
            stats[stat.pid] = stat
    stats.pop(os.getpid(), None)
    victims = set(known) & set(stats)
    victims |= {
        pid
        for pid, stat in stats.items()
        if pid == root
        or (root is not None and stat.session == root)
        or _is_marked(pid, marker, pid_namespace)
    }
    grown = True
    while grown:
        children = {pid for pid, s in stats.items() if s.parent in victims and pid not in victims}
        victims |= children
        grown = bool(children)
    return [stats[pid] for pid in victims]


def _is_marked(pid: int, marker: str, pid_namespace: str | None) -> bool:
    try:
        if pid_namespace and os.readlink(f"/proc/{pid}/ns/pid") != pid_namespace:
            return False
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    wanted = f"{COMMAND_VARIABLE}={marker}".encode()
    return any(
        entry == wanted or entry.startswith(wanted + b".") for entry in environment.split(b"\0")
    )
