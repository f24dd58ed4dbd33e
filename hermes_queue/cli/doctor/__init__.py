"""`hermes-queue doctor`: checks this machine, its Redis and its model endpoint.

    command.py       the command itself, and the order of the checks
    deployment.py    jobs, lanes and results that are stuck at the moment
    endpoint.py      a model endpoint
    host.py          isolation, disks, files, object store, leftovers
    redis_server.py  the Redis server

Everything that a check writes (a key, files, an object) is removed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]
"""error: work fails or is lost in this state. warning: work succeeds, but somebody should know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """Stable name of the check, e.g. `redis.memory`."""
    level: Level
    message: str
    remedy: str = ""
    """How to fix it; empty if nothing is to be done."""


def ok(check: str, message: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """A finding under which work succeeds for now."""
    return Finding(check, "warning", message, remedy)


def error(check: str, message: str, remedy: str = "") -> Finding:
    """A finding under which work fails; `remedy` is empty if the message contains it."""
    return Finding(check, "error", message, remedy)
