"""The worker's limit of open files: raised for itself, unchanged in slots.

Commands start with the soft limit that the worker was started with: old software that calls
select(), or closes every possible descriptor, breaks under a high one.
"""

from __future__ import annotations

import resource

MOST = 1 << 20
"""Upper bound of the raised soft limit; on some systems the hard one is infinite."""
BASE = 256
"""Open files of an idle worker: connections, logs, libraries, builds of environments."""
PER_TRAJECTORY = 48
"""A slot, a running command, pipes of its background processes, a model call, the spool."""

_at_start: int | None = None


def raise_limit() -> None:
    """Raise this process's soft limit to the hard one, once; the old one is kept for slots."""
    global _at_start
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = most()
    if _at_start is None and soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        _at_start = soft


def most() -> int:
    """Number of files this process may have open once its limit is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)


def limit_of_commands() -> int | None:
    """The soft limit to set for commands; None = the one they inherit."""
    return _at_start


def shortage(trajectories: int) -> str:
    """The problem with the limit for this many concurrent trajectories; empty if it suffices."""
    needed = BASE + PER_TRAJECTORY * trajectories
    if most() >= needed:
        return ""
    return (
        f"a worker may have {most()} files open here (ulimit -Hn), {trajectories} trajectories "
        f"at once may need {needed}: beyond that slots and connections fail"
    )


def remedy(trajectories: int) -> str:
    """Advice for the operator about a shortage."""
    fits = max(1, (most() - BASE) // PER_TRAJECTORY)
    return (
        f"allow {BASE + PER_TRAJECTORY * trajectories} (LimitNOFILE= of a systemd unit, "
        "--ulimit nofile= of a container, /etc/security/limits.conf), or lower "
        f"HERMES_QUEUE_WORKER_CONCURRENCY to {fits}"
    )
