"""The Lua scripts, each in its file with keys and arguments documented at the top."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

SCRIPTS = (
    "enqueue",
    "begin",
    "renew",
    "sweep",
    "requeue",
    "isolate",
    "due",
    "published",
    "reconcile",
    "publish",
    "breaker",
    "trim",
    "run_state",
    "run_budget",
    "run_policy",
    "run_unpark",
    "run_cancel",
    "cancel",
    "run_purge",
    "run_erase",
    "sandbox_renew",
    "reap_turn",
    "reap_judge",
    "creation_take",
    "probe_save",
    "snapshot_save",
    "snapshot_forget",
    "object_note",
    "object_sweep",
    "limit_acquire",
    "limit_release",
    "limit_renew",
    "beat",
    "worker_ended",
    "tally",
    "lanes_note",
    "lane_pause",
)


_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


@cache
def source(name: str) -> str:
    """The text of `lua/<name>.lua`, after the functions that it includes."""
    folder = resources.files("hermes_queue.keyspace").joinpath("lua")
    text = folder.joinpath(f"{name}.lua").read_text("utf-8")
    parts = [
        folder.joinpath(f"include/{part}.lua").read_text("utf-8") for part in _INCLUDE.findall(text)
    ]
    return "\n".join([*parts, text])
