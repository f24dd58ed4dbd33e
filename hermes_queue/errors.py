"""Every error of the project, named after the boundary that was crossed.

TrajectoryFailure            cause         retried  a trajectory has no score because ...
 + SandboxError              sandbox       yes      the compute failed, not the command in it
 |  - IsolationUnavailable   sandbox       no       this machine cannot fence slots off
 |  - SlotLost               sandbox       yes      the slot was released or its box died
 |  -  - SlotKilled          sandbox       yes      what ran in the slot ended it; when the agent
 |                                                  does so again: stop reason slot_killed
 |  - SandboxRejected        sandbox       no       the provider refuses the account or profile
 |  - SandboxUnavailable     sandbox       handed   the provider has no room now; the job is
 |                                         back     handed back and uses no attempt
 + ModelError                model         yes      the endpoint failed after its own retries
 |  - ContextLengthExceeded  -             -        an agent outcome: stop reason context_length
 + ModelConfigError          model_config  no       wrong key, model or parameter
 + EnvInfraError             env_infra     yes      clone, download or install failed
 + EnvBug                    env_bug       no       env code raised, or a row misfits its package
 + DeadlineExceeded          deadline      once     a stage or the attempt ran out of time
 + Cancelled                 cancelled     no       an operator revoked it
HermesQueueError             errors that are about no single trajectory
 + ConfigurationError        wrong flag, setting or installation (exit code 2)
 |  - InputError             a row, file or dataset is unusable
 + RedisUnavailable          cannot be reached, or refuses us (exit code 4)
 + RedisFull                 Redis has no room (exit code 4)
 + StoreUnavailable          the object store of bodies does not answer, or refuses us
 + PayloadTooLarge           an item or record is over the size cap (exit code 2)
 + SchemaTooNew              written by a newer version of this package

A non-zero exit code, a failing test or a command that runs out of time inside a
sandbox is data on the trajectory, never one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

Cause = Literal["sandbox", "model", "model_config", "env_infra", "env_bug", "deadline", "cancelled"]
Stage = Literal["queue", "load", "prepare", "acquire", "setup", "agent", "verify", "publish"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ISOLATION = 3
EXIT_REDIS = 4
EXIT_BLOCKED = 5
"""A worker whose event loop did not answer any more, and which ended itself."""
EXIT_INTERRUPTED = 130


class TrajectoryFailure(Exception):
    """Why one attempt has no score. `stage` is filled in by `stage()`."""

    cause: ClassVar[Cause]
    retryable: ClassVar[bool] = True
    stage: Stage | None = None
    events: tuple[Mapping[str, Any], ...] = ()
    """What led to it, e.g. tries of a model call; kept on the record."""


class SandboxError(TrajectoryFailure):
    """The sandbox, not the command in it, failed."""

    cause = "sandbox"


class IsolationUnavailable(SandboxError):
    """Slots cannot be fenced off on this machine; the message says what to install or allow."""

    retryable = False


class SlotLost(SandboxError):
    """The slot is not leased any more, or its sandbox died."""


class SlotKilled(SlotLost):
    """What ran in the slot ended it, while its sandbox, host and connection live.

    A backend raises this only where it knows that nothing from outside can have done it: no
    signal, no release, no lack of memory of the host. A sandbox that died whole is a `SlotLost`.
    """


class SandboxRejected(SandboxError):
    """The provider refuses our credentials or this profile: asking again would not help."""

    retryable = False


class SandboxUnavailable(SandboxError):
    """The provider is out of room or quota. The job is handed back instead of failed."""

    def __init__(self, message: str, *, retry_after_s: float = 30.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelError(TrajectoryFailure):
    """The chat endpoint failed after its own retries, or sent a malformed reply."""

    cause = "model"


class ContextLengthExceeded(ModelError):
    """The conversation no longer fits the model. The agent loop reports `context_length`."""


class ModelConfigError(TrajectoryFailure):
    """401, 403, 404, 422 or dropped tools: the same request would fail again."""

    cause = "model_config"
    retryable = False


class EnvInfraError(TrajectoryFailure):
    """A clone, download or install failed."""

    cause = "env_infra"


class EnvBug(TrajectoryFailure):
    """Env code raised, or the row's recipe does not match its package."""

    cause = "env_bug"
    retryable = False


class DeadlineExceeded(TrajectoryFailure):
    """A stage, or the attempt as a whole, ran out of time through no choice of the agent."""

    cause = "deadline"


class Cancelled(TrajectoryFailure):
    """An operator revoked the trajectory."""

    cause = "cancelled"
    retryable = False


class HermesQueueError(Exception):
    """Base of the errors that concern no single trajectory."""

    exit_code: ClassVar[int] = EXIT_FAILED


class ConfigurationError(HermesQueueError):
    """A flag, setting or installation is wrong; the message names it and the fix."""

    exit_code = EXIT_USAGE


class InputError(ConfigurationError):
    """A dataset, file or row is unusable; the message names the place and the field."""


class RedisUnavailable(HermesQueueError):
    """Redis cannot be reached, or refuses our credentials."""

    exit_code = EXIT_REDIS


class RedisFull(HermesQueueError):
    """Redis refuses writes because `maxmemory` is reached."""

    exit_code = EXIT_REDIS


class StoreUnavailable(HermesQueueError):
    """The object store of large bodies cannot be reached, or refuses our credentials."""


class PayloadTooLarge(HermesQueueError):
    """An item or a record is larger than the configured cap."""

    exit_code = EXIT_USAGE


class SchemaTooNew(HermesQueueError):
    """The payload was written by a newer version of hermes-queue than this one."""


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """Attribute whatever escapes the block to the stage `name`.

    Raises:
        TrajectoryFailure: the original one with `stage` filled in, or an `EnvBug`
            chained to any other exception. `HermesQueueError` and cancellation
            pass through unchanged.
    """
    try:
        yield
    except TrajectoryFailure as failure:
        failure.stage = failure.stage or name
        raise
    except HermesQueueError:
        raise
    except Exception as error:
        bug = EnvBug(f"{type(error).__name__}: {error}")
        bug.stage = name
        raise bug from error
