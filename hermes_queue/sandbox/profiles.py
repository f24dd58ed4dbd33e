"""Profiles of a backend whose slots are all alike."""

from __future__ import annotations

from hermes_queue.errors import SandboxRejected

DEFAULT_PROFILE = "default"
"""The profile that every backend has: what its own settings say."""


def refuse_but_default(name: str) -> None:
    """For backends whose settings describe one kind of slot only.

    Raises:
        SandboxRejected: another profile is asked for.
    """
    if name != DEFAULT_PROFILE:
        raise SandboxRejected(
            f"sandbox profile {name!r} is unknown to this worker; known: {DEFAULT_PROFILE} "
            "(its slots are all alike; further profiles need HERMES_QUEUE_SANDBOX_BACKEND=modal)"
        )
