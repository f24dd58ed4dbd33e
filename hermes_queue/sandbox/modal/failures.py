"""Translates the SDK's errors to those of `hermes_queue.errors`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_queue.errors import (
    HermesQueueError,
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
    TrajectoryFailure,
)

_REFUSED = ("AuthError", "PermissionDeniedError", "InvalidError", "UnimplementedError")
"""The same request would be refused again."""
_GONE = ("NotFoundError", "ConflictError", "SandboxTerminatedError", "SandboxTimeoutError")
"""The sandbox has ended, or is ending at its own time limit."""
BUILD_RETRY_S = 60.0
"""Registries count pulls over hours."""
_THROTTLED = re.compile(r"toomanyrequests|too many requests|\b429\b|rate.?limit", re.IGNORECASE)
"""In a failed build: a registry throttles us."""
_PASSING = re.compile(
    r"external shut-?down|build for \S+ timed out|evict|unknown status|service unavailable"
    r"|bad gateway|gateway time-?out|connection reset|handshake timeout|i/o timeout"
    r"|temporary failure in name resolution",
    re.IGNORECASE,
)
"""In a failed build: errors that may pass. Failures of its own commands do not."""


@contextmanager
def explained(what: str, *, gone: bool = False) -> Iterator[None]:
    """Translate the SDK's errors; `what` is the current action, e.g. "creating a sandbox".

    With `gone` the block works on a running sandbox, so "not found" means that it has ended.

    Raises:
        SandboxUnavailable: quota or rate limit, also a registry's during a build.
        SandboxRejected: credentials, rights, an unsupported request, or an image whose own build
            fails.
        SlotLost: with `gone`, the sandbox has ended.
        SandboxError: everything else; worth another try.
    """
    try:
        yield
    except (TrajectoryFailure, HermesQueueError):
        raise
    except Exception as error:
        raise translated(error, what, gone=gone) from error


def translated(error: Exception, what: str, *, gone: bool = False) -> SandboxError:
    """The failure for `error`, which the SDK raised during `what`.

    The SDK raises the builtin ConnectionError and TimeoutError for a dead worker, its own
    classes of the same names for the control plane, and sometimes grpclib's or OS errors.
    """
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "modal.exception"}
    message = f"{what}: {type(error).__name__}: {str(error).strip() or 'no details'}"
    if "ResourceExhaustedError" in names:
        return SandboxUnavailable(message)
    if gone and names.intersection(_GONE):
        return SlotLost(message)
    if names.intersection(_REFUSED) and "ConflictError" not in names:  # the state may change
        return SandboxRejected(message)
    if "NotFoundError" in names:
        return SandboxRejected(f"{message}; check the names in the profile")
    if "ImageBuildError" in names or "RemoteError" in names:
        return _failed_build(message)
    return SandboxError(message)


def _failed_build(message: str) -> SandboxError:
    """The failure of an image build; its status reaches us as text only."""
    if _THROTTLED.search(message):
        return SandboxUnavailable(message, retry_after_s=BUILD_RETRY_S)
    if _PASSING.search(message):
        return SandboxError(message)
    return SandboxRejected(f"{message}; see the image's build log at Modal")
