"""Open files of the worker: the limit is raised for it, and stays what it was in slots.

Commands start with the soft limit that the worker was started with: under a high one old
software breaks that calls select(), or closes every descriptor there could be.
"""

from __future__ import annotations

import resource

MOST = 1 << 20
"""What the soft limit is raised to at most; some systems say that the hard one is infinite."""
BASE = 256
"""Of a worker without a job: connections, logs, libraries, builds of environments."""
PER_TRAJECTORY = 48
"""A slot, a running command, what its background processes hold, a call of a model, the spool."""

_at_start: int | None = None


def raise_limit() -> None:
    """Raise this process's soft limit to the hard one, once; what it was is kept for slots."""
    global _at_start
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most()
    if _at_start is None and soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _at_start = soft


def most() -> int:
    """How many files this process may have open once its limit is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)


def limit_of_commands() -> int | None:
    """The soft limit that commands have to be given; None = the one they inherit."""
    return _at_start


def shortage(trajectories: int) -> str:
    """What is wrong with the limit for so many trajectories at once; empty if nothing is."""
    needed = BASE + PER_TRAJECTORY * trajectories
    if most() >= needed:
        return ""
    return (
        f"a worker may have {most()} files open here (ulimit -Hn), {trajectories} trajectories "
        f"at once may need {needed}: beyond that slots and connections fail"
    )


def remedy(trajectories: int) -> str:
    """What an operator does about a shortage."""
    fits = max(1, (most() - BASE) // PER_TRAJECTORY)
    return (
        f"allow {BASE + PER_TRAJECTORY * trajectories} (LimitNOFILE= of a systemd unit, "
        "--ulimit nofile= of a container, /etc/security/limits.conf), or lower "
        f"HERMES_QUEUE_WORKER_CONCURRENCY to {fits}"
    )
