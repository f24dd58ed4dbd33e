"""The configuration lock of a run: one run id stands for one configuration."""

from __future__ import annotations

import json
import re

from hermes_queue.errors import ConfigurationError


def explained_refusal(run_id: str, error: str, sent: str) -> ConfigurationError | None:
    """The error for a refusal of `enqueue.lua`; None if it is another error.

    Args:
        run_id: of the run that refused.
        error: the message of the script.
        sent: the configuration of this call, as JSON.
    """
    if "GROUPSIZE" in error:
        return ConfigurationError(
            f"--run-id: run {run_id!r} was begun with another group size ({error}); repeat "
            "it with the same --group-size, or choose a new run id"
        )
    if refusal := _of_group(run_id, error):
        return refusal
    if "CONFIG {" in error:
        old, new = json.loads(error[error.index("{") :]), json.loads(sent)
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        differing = ", ".join(
            f"{name} {json.dumps(old.get(name))} (now {json.dumps(new.get(name))})"
            for name in names
        )
        return ConfigurationError(
            f"--run-id: run {run_id!r} was begun with {differing}; repeat it with the same, or "
            "choose a new run id"
        )
    if "CANCELLED" in error:
        return ConfigurationError(f"--run-id: run {run_id!r} was cancelled; choose a new run id")
    return None


_DIFFERENCES = {
    "PLANNED": "with another number of samples: group_size and group_policy.extra_samples make {}",
    "POLICY": "with another group_policy: {}",
}


def _of_group(run_id: str, error: str) -> ConfigurationError | None:
    """The error for a group that differs, or for a job that does not belong to its group."""
    if found := re.search(r"GROUP(PLANNED|POLICY) (\S+) (.*)", error):
        what = _DIFFERENCES[found[1]].format(found[3])
        return ConfigurationError(
            f"enqueue: group {found[2]!r} was begun {what}; give all its jobs the same, or choose "
            "a new run id"
        )
    if found := re.search(r"SAMPLE (\S+) is beyond the (\d+)", error):
        return ConfigurationError(
            f"enqueue: sample_index of {found[1]!r}: group_size and group_policy.extra_samples "
            f"make {found[2]} samples, from 0 on; raise group_size, or leave the job out"
        )
    if found := re.search(r"IDS (\S+)", error):
        return ConfigurationError(
            f"enqueue: trajectory_id {found[1]!r} is not <run_id>.<digest>.<sample_index> of run "
            f"{run_id!r}; make ids with make_ids()"
        )
    return None
