"""The configuration lock of a run: one run id stands for one configuration."""

from __future__ import annotations

import json
import re

from hermes_queue.errors import ConfigurationError

_ANOTHER = "; give all its jobs the same, or choose a new run id"
_REFUSALS = {
    r"GROUPSIZE": "--run-id: run {run!r} was begun with another group size ({error}); repeat it "
    "with the same --group-size, or choose a new run id",
    r"GROUPPLANNED (\S+) (.*)": "enqueue: group {0!r} was begun with another number of samples: "
    "group_size and group_policy.extra_samples make {1}" + _ANOTHER,
    r"GROUPPOLICY (\S+) (.*)": "enqueue: group {0!r} was begun with another group_policy: {1}"
    + _ANOTHER,
    r"SAMPLE (\S+) is beyond the (\d+)": "enqueue: sample_index of {0!r}: group_size and "
    "group_policy.extra_samples make {1} samples, from 0 on; raise group_size, or leave the job "
    "out",
    r"IDS (\S+)": "enqueue: trajectory_id {0!r} is not <run_id>.<digest>.<sample_index> of run "
    "{run!r}; make ids with make_ids()",
    r"CANCELLED": "--run-id: run {run!r} was cancelled; choose a new run id",
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
            f"--run-id: run {run_id!r} was begun with {differing}; repeat it with the same, or "
            "choose a new run id"
        )
    for said, text in _REFUSALS.items():
        if found := re.search(said, error):
            return ConfigurationError(text.format(*found.groups(), run=run_id, error=error))
    return None
