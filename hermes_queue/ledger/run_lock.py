"""The locks of a run: one run id stands for one configuration, which can be made again."""

from __future__ import annotations

import json
import re

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import Deployment

LOCK_BYTES_MAX = 1 << 20

_ANOTHER = "; give all its jobs the same, or choose a new run id"
_REFUSALS = {
    r"GROUPSIZE": "run {run!r} was begun with another group size ({error}); repeat it with the "
    "same one, or choose a new run id",
    r"GROUPPLANNED (\S+) (.*)": "enqueue: group {0!r} was begun with another number of samples: "
    "group_size and group_policy.extra_samples make {1}" + _ANOTHER,
    r"GROUPPOLICY (\S+) (.*)": "enqueue: group {0!r} was begun with another group_policy: {1}"
    + _ANOTHER,
    r"SAMPLE (\S+) is beyond the (\d+)": "enqueue: sample_index of {0!r}: group_size and "
    "group_policy.extra_samples make {1} samples, from 0 on; raise group_size, or leave the job "
    "out",
    r"IDS (\S+)": "enqueue: trajectory_id {0!r} is not <run_id>.<digest>.<sample_index> of run "
    "{run!r}; make ids with make_ids()",
    r"CANCELLED": "run {run!r} was cancelled; choose a new run id",
}
"""What the script says, and what we say."""


def explained_refusal(run_id: str, error: str, sent: str) -> ConfigurationError | None:
    """Our error for one of `enqueue.lua`, None if it is no refusal.

    `sent` is the configuration of this call, as JSON.
    """
    if "CONFIG {" in error:
        old, new = json.loads(error[error.index("{") :]), json.loads(sent)
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        differing = ", ".join(
            f"{name} {json.dumps(old.get(name))} (now {json.dumps(new.get(name))})"
            for name in names
        )
        return ConfigurationError(
            f"run {run_id!r} was begun with {differing}; repeat it with the same, or "
            "choose a new run id"
        )
    for said, text in _REFUSALS.items():
        if found := re.search(said, error):
            return ConfigurationError(text.format(*found.groups(), run=run_id, error=error))
    return None


def keep_lock(ledger: Deployment, run_id: str, text: str, *, run_ttl_s: int) -> bool:
    """Keep the lock of a run, in place of an earlier one; False = it is too long to be kept."""
    if len(text.encode()) > LOCK_BYTES_MAX:
        return False
    ledger.call("run_lock", run_id=run_id, lock=text, run_ttl_s=run_ttl_s)
    return True


def kept_lock(ledger: Deployment, run_id: str) -> str:
    """The lock that the last producer of a run has kept.

    Raises:
        ConfigurationError: it has none.
    """
    with explained(ledger.url):
        size = ledger.client.hstrlen(ledger.key(f"run:{run_id}"), "lock")
    [text] = ledger.hash_fields(f"run:{run_id}", "lock") if size <= LOCK_BYTES_MAX else [""]
    try:  # any producer may have written it
        lock = json.loads(text)
        shown = json.dumps(lock, indent=2) if isinstance(lock, dict) else ""
    except (ValueError, RecursionError):
        shown = ""
    if not shown:
        raise ConfigurationError(
            f"run {run_id!r} has no lock: it is unknown, or no `python -m producers` made it"
        )
    return shown + "\n"
