"""Profiles of a backend with one kind of slot."""

from __future__ import annotations

from hermes_queue.errors import SandboxRejected

DEFAULT_PROFILE = "default"
"""The profile that every backend has: its own settings."""


def refuse_but_default(name: str) -> None:
    """Refuse other profiles, for a backend with one kind of slot. Raises SandboxRejected."""
    if name != DEFAULT_PROFILE:
        raise SandboxRejected(
            f"sandbox profile {name!r} is unknown to this worker; known: {DEFAULT_PROFILE} "
            "(its slots are all alike; further profiles need HERMES_QUEUE_SANDBOX_BACKEND=modal)"
        )
