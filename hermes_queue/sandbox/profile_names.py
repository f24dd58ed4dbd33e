"""Which sandbox profiles a backend knows, where that can be told without starting it."""

from __future__ import annotations

from hermes_queue.errors import ConfigurationError, SandboxRejected

DEFAULT_PROFILE = "default"
"""The profile that every backend has: what its own settings say."""


def profile_names(backend: str) -> tuple[str, ...] | None:
    """The names that a worker with these settings would know; None = only the backend can tell.

    Raises:
        ConfigurationError: Modal's file of profiles cannot be read, or is wrong.
    """
    if backend == "local":
        return (DEFAULT_PROFILE,)
    if backend == "modal":
        from hermes_queue.sandbox.modal.profiles import Profiles
        from hermes_queue.settings import ModalSettings

        return Profiles(ModalSettings()).names
    return None


def check_profile(name: str, backend: str) -> None:
    """Refuse a profile that a worker with these settings would not know.

    Raises:
        ConfigurationError: the message lists those there are.
    """
    known = profile_names(backend)
    if known is not None and name not in known:
        hint = (
            "describe it in the file of HERMES_QUEUE_MODAL_PROFILES"
            if backend == "modal"
            else "further profiles need another backend, such as --sandbox modal"
        )
        raise ConfigurationError(
            f"--profile: the {backend} sandbox has no profile {name!r}; known: "
            f"{', '.join(known)}; {hint}"
        )


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
