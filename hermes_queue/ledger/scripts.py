"""The Lua scripts, each in its file with keys and arguments documented at the top."""

from __future__ import annotations

from functools import cache
from importlib import resources

SCRIPTS = (
    "enqueue",
    "begin",
    "renew",
    "sweep",
    "requeue",
    "due",
    "published",
    "reconcile",
    "publish",
    "breaker",
    "trim",
    "run_state",
    "run_unpark",
    "run_cancel",
    "run_purge",
    "sandbox_renew",
    "reap_turn",
    "reap_judge",
    "creation_take",
)


@cache
def source(name: str) -> str:
    """The text of `lua/<name>.lua`."""
    return resources.files("hermes_queue.ledger").joinpath(f"lua/{name}.lua").read_text("utf-8")
