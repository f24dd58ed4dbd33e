"""Processes of this host in /proc: identify them reliably, and kill a tree."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Container, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

PF_EXITING = 0x4
MAX_ROUNDS = 50
GONE_S = 2.0
"""How long to wait for killed processes; the kernel may keep one for longer."""
GONE_PAUSE_S = 0.002

COMMAND_VARIABLE = "HQ_COMMAND_ID"
"""Set to `<slot id>.<n>` in every command, so that its stray processes can be found."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/<pid>/stat that we use. Pids are those of the reader's namespace."""

    pid: int
    state: str
    parent: int
    session: int
    flags: int
    started: int
    """Clock ticks after boot; with the pid this identifies a process uniquely."""
    name: str = ""
    """Name of its program, 15 characters."""
    cpu_ticks: int = 0
    """Processor time of it and of the children that it waited for, in clock ticks."""
    threads: int = 1
    """Its first thread counts until the process is reaped."""

    @property
    def is_alive(self) -> bool:
        """False from the moment the process began to exit, before its children die."""
        # State and flags are those of its first thread, which may end before the others.
        return self.threads > 1 or (self.state not in "ZX" and not self.flags & PF_EXITING)

    @property
    def is_zombie(self) -> bool:
        """Whether it holds nothing but its exit code."""
        return self.threads <= 1 and self.state in "ZX"


def read_at_once(path: str) -> bytes:
    """The first bytes of a file of the kernel's. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def read_stat(pid: int) -> ProcessStat | None:
    """The process `pid`, or None if it does not exist."""
    try:
        text = read_at_once(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError:
        return None
    # The name in parentheses may itself contain blanks and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        flags=int(fields[6]),
        started=int(fields[19]),
        name=text[text.index("(") + 1 : text.rindex(")")],
        cpu_ticks=sum(map(int, fields[11:15])),
        threads=int(fields[17]),
    )


def is_running(pid: int, started: int) -> bool:
    """Whether the process that had `pid` and start time `started` still runs."""
    stat = read_stat(pid)
    return stat is not None and stat.started == started and stat.is_alive


def kill_process(pid: int, started: int) -> None:
    """SIGKILL exactly this process; no-op if it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_running(pid, started):  # checked after opening: the pid may have been reused before
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


MarkedTree = tuple[str | None, int | None]
"""A mark and a root, see `kill_tree`."""


def kill_tree(marker: str | None, root: int | None, pid_namespace: str | None = None) -> bool:
    """Kill `root`, its descendants and session, and all processes with the mark `marker`, if any.

    A process is marked if `HQ_COMMAND_ID` in its environment is `marker`, or begins with it and
    a dot. All are stopped before the first is killed, so that none can fork away. Killed
    processes are gone on return. Blocking, call it in a thread.

    With `pid_namespace` (the link target of /proc/<pid>/ns/pid) only processes in it are killed.
    The parent of `root`, outside, must live until it has reaped it: an orphan of the inner
    namespace would wait for the host's init, and the end of the namespace for both.

    Returns:
        Whether nothing was left at the end. False means that processes fork faster than they can
            be stopped, and the whole slot must be ended.
    """
    return kill_trees([(marker, root)], pid_namespace)


def kill_trees(trees: Sequence[MarkedTree], pid_namespace: str | None = None) -> bool:
    """As `kill_tree` for all `trees`: /proc is read as often as for one of them."""
    found: dict[int, int] = {}
    caught_all = False
    for _ in range(MAX_ROUNDS):
        victims = _victims(trees, pid_namespace, found)
        fresh = [stat for stat in victims if stat.pid not in found]
        caught_all = not fresh
        if caught_all:
            break
        for stat in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stat.pid, signal.SIGSTOP)
            found[stat.pid] = stat.started
    for pid, started in found.items():
        kill_process(pid, started)
    give_up = time.monotonic() + GONE_S
    while left := [pid for pid, started in found.items() if _is_there(pid, started)]:
        if time.monotonic() > give_up:
            _kill_tracers(left, pid_namespace)
            break
        time.sleep(GONE_PAUSE_S)
    return caught_all


def _is_there(pid: int, started: int) -> bool:
    """Whether the process still holds resources."""
    stat = read_stat(pid)
    return stat is not None and stat.started == started and not stat.is_zombie


def _kill_tracers(pids: list[int], pid_namespace: str | None) -> None:
    """Kill those who hold killed processes just before their end, or a dead thread of theirs."""
    for tracer in set().union(*map(_tracers, pids)):
        stat = read_stat(tracer)
        if stat and (pid_namespace is None or _namespace(tracer) == pid_namespace):
            kill_process(tracer, stat.started)


def tree_cpu_s(root: int) -> float:
    """Processor seconds of `root`, its descendants and session so far. Blocking."""
    tree = _victims([(None, root)], None, {})
    return sum(stat.cpu_ticks for stat in tree) / os.sysconf("SC_CLK_TCK")


def kill_mentioning(path: str) -> None:
    """SIGKILL every process with `path` in its arguments, other than this one."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        stat = read_stat(int(name))
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if stat and path.encode() in arguments:
            kill_process(stat.pid, stat.started)


def _victims(
    trees: Sequence[MarkedTree], pid_namespace: str | None, known: Container[int]
) -> list[ProcessStat]:
    stats = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) and stat.is_alive:
            stats[stat.pid] = stat
    stats.pop(os.getpid(), None)
    markers = {marker for marker, _ in trees if marker is not None}
    roots = {root for _, root in trees if root}  # not 0, the session of the kernel's threads
    tree = {
        pid
        for pid, stat in stats.items()
        if pid in roots
        or pid in known
        or stat.session in roots
        or (markers and _is_marked(pid, markers))
    }
    for root in roots - stats.keys():  # Dead: a tracer keeps it from its parent, which waits.
        tree |= _tracers(root) & stats.keys()
    grown = True
    while grown:
        children = {pid for pid, s in stats.items() if s.parent in tree and pid not in tree}
        tree |= children
        grown = bool(children)
    return [stats[p] for p in tree if pid_namespace is None or _namespace(p) == pid_namespace]


def _tracers(pid: int) -> set[int]:
    """The processes that trace threads of `pid`."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    tracing = {_status(int(thread)).get("TracerPid", "0") for thread in threads}
    # What traces is a thread, too.
    return {int(_status(int(thread)).get("Tgid", "0")) for thread in tracing} - {0}


def _status(pid: int) -> dict[str, str]:
    """The fields of /proc/<pid>/status, which exists for threads, too; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    return dict(line.partition(":\t")[::2] for line in text.splitlines())


def _is_marked(pid: int, markers: Set[str]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    name = f"{COMMAND_VARIABLE}=".encode()
    values = [each.removeprefix(name) for each in environment.split(b"\0") if each.startswith(name)]
    # By their few lengths: there may be a thousand marks, and a value of megabytes.
    return any(
        value[:length].decode(errors="replace") in markers and value[length : length + 1] in b"."
        for length in {len(marker.encode()) for marker in markers}
        for value in values
    )


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
