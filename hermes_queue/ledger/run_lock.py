"""The configuration lock of a run: one run id stands for one configuration."""

from __future__ import annotations

import json

from hermes_queue.errors import ConfigurationError


def explained_refusal(run_id: str, error: str, wanted: str) -> ConfigurationError | None:
    """What the error of `enqueue.lua` means; None when it is not one of its refusals.

    Args:
        run_id: of the run that refused.
        error: the message of the script.
        wanted: the configuration that was sent, as JSON.
    """
    if "GROUPSIZE" in error:
        return ConfigurationError(
            f"--run-id: run {run_id!r} was begun with another group size ({error}); repeat "
            "it with the same --group-size, or choose a new run id"
        )
    if "CONFIG {" in error:
        old, new = json.loads(error[error.index("{") :]), json.loads(wanted)
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
