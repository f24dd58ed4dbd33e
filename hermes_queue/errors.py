"""Every error of the project, named after the boundary that was crossed.

A `TrajectoryFailure` means that a trajectory has no score, and `CAUSES` what follows; any other
error is a `HermesQueueError`. A non-zero exit code, a failing test or a command that runs out
of time inside a sandbox is data on the trajectory, never one of these.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Stage = Literal["queue", "load", "prepare", "acquire", "setup", "agent", "verify", "publish"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ISOLATION = 3
EXIT_REDIS = 4
EXIT_BLOCKED = 5
"""Exit code of a worker that ended itself because its event loop no longer answered."""
EXIT_INTERRUPTED = 130

_TEXT_MAX, _PATH_MAX = 1000, 300
"""Characters of an exception's text and of a file's path that `foreign_error` shows."""
_PASSED_OVER = {"hermes_queue", "workers", "producers", "pydantic", *sys.stdlib_module_names}


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason for which an attempt has no score, and its consequences."""

    what: str
    attempts: str | None = None
    """Field of `RetrySettings` with the number of attempts that may end so; None = no retry."""
    refilled: bool = False
    """The group gets another sample in place of a trajectory that ended so."""
    breaker: Literal["", "lane", "endpoint"] = ""
    """Whose circuit breaker counts such attempts: the lane's, as the cause can affect all of it, or
    that of the model's endpoint."""
    pauses_run: bool = False
    """Pause the run, because all its jobs would fail in the same way."""
    dead_letter: bool = False
    """Write a dead letter, because a person has to look."""
    runs_again: bool = True
    """`run retry` may run the job again, unless it was refilled or became a dead letter."""
    part_of: str = ""
    """The wider cause under which it is counted, shown and judged by the breaker."""


CAUSES: Mapping[str, Cause] = {
    "sandbox": Cause("the sandbox failed", "attempts_sandbox", refilled=True, breaker="lane"),
    "slot_killed": Cause(
        "a process in the slot ended it", "attempts_sandbox", refilled=True, part_of="sandbox"
    ),
    "isolation": Cause("this machine cannot isolate slots", part_of="sandbox"),
    "rejected": Cause("the provider refuses the account or the profile", part_of="sandbox"),
    "poison": Cause("the job kills its workers", dead_letter=True, part_of="sandbox"),
    "model": Cause(
        "the model's endpoint failed, after the client's own retries",
        "attempts_model",
        refilled=True,
        breaker="endpoint",
    ),
    "model_config": Cause("a wrong key, model or parameter", breaker="endpoint", pauses_run=True),
    "env_infra": Cause(
        "a clone, download or installation failed",
        "attempts_env_infra",
        refilled=True,
        breaker="lane",
    ),
    "env_bug": Cause("the env raised, or its row misfits", dead_letter=True),
    "deadline": Cause(
        "a stage ran out of time, not by the agent's choice", "attempts_deadline", refilled=True
    ),
    "cancelled": Cause("an operator revoked it", runs_again=False),
}
"""All causes. A new one is a row here and, unless one fits, a class with its `kind`."""

WIDE_CAUSES = tuple(name for name, cause in CAUSES.items() if not cause.part_of)
"""Causes under which failures are counted and shown."""


def printable(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot encode, replaced by escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class TrajectoryFailure(Exception):
    """Why one attempt has no score. `stage()` fills in `stage`."""

    kind: ClassVar[str]
    """Its row in `CAUSES`."""
    stage: Stage | None = None
    events: tuple[Mapping[str, Any], ...] = ()
    """Events that led to it, e.g. tries of a model call; kept on the record."""

    def __init__(self, *details: object) -> None:
        """Keep the details as `printable` text: servers, rows and programs have a part in it."""
        super().__init__(*(printable(str(each)) for each in details))

    def __init_subclass__(cls) -> None:
        if getattr(cls, "kind", None) not in CAUSES:
            raise TypeError(f"{cls.__name__}.kind must be one of {', '.join(CAUSES)}")

    @property
    def consequences(self) -> Cause:
        """Its row in `CAUSES`."""
        return CAUSES[self.kind]

    @property
    def cause(self) -> str:
        """One of `WIDE_CAUSES`."""
        return self.consequences.part_of or self.kind


class SandboxError(TrajectoryFailure):
    """The sandbox, not the command in it, failed."""

    kind = "sandbox"


class IsolationUnavailable(SandboxError):
    """Slots cannot be isolated on this machine; the message says what to install or allow."""

    kind = "isolation"


class SlotLost(SandboxError):
    """The slot is not leased any more, or its sandbox died."""


class SlotKilled(SlotLost):
    """A process in the slot ended it, while its sandbox, host and connection live.

    A backend raises this only if nothing outside the slot can have ended it: no signal, no
    release, no lack of memory on the host. If the whole sandbox died, it is a `SlotLost`.
    """

    kind = "slot_killed"


class SandboxRejected(SandboxError):
    """The provider refuses our credentials or this profile: asking again would not help."""

    kind = "rejected"


class SandboxUnavailable(SandboxError):
    """The provider is out of room or quota. The job is handed back instead of failed."""

    def __init__(self, message: str, *, retry_after_s: float = 30.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkLost(SandboxError):
    """What an agent has done was handed over to be graded, and is gone: its agent begins anew."""


class ModelError(TrajectoryFailure):
    """The chat endpoint failed after its own retries, or sent a malformed reply."""

    kind = "model"


class ContextLengthExceeded(ModelError):
    """The conversation no longer fits the model. The agent loop reports `context_length`."""


class ModelConfigError(TrajectoryFailure):
    """401, 403, 404, 422 or dropped tools: the same request would fail again."""

    kind = "model_config"


class EnvInfraError(TrajectoryFailure):
    """A clone, download or install failed."""

    kind = "env_infra"


class EnvBug(TrajectoryFailure):
    """Env code raised, or the row's recipe does not fit its package."""

    kind = "env_bug"


class DeadlineExceeded(TrajectoryFailure):
    """A stage, or the whole attempt, ran out of time, not by the agent's choice."""

    kind = "deadline"


class Cancelled(TrajectoryFailure):
    """An operator revoked the trajectory."""

    kind = "cancelled"


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


class NoSnapshot(HermesQueueError):
    """A slot's files cannot be copied now, or a copy is not there or not whole.

    Never a failure of a trajectory: it goes on, or starts anew.
    """

    may_pass = False
    """Whether a copy is there that cannot be restored now: the disk is full, or the host slow."""


class StoreUnavailable(HermesQueueError):
    """The object store of large bodies cannot be reached, or refuses our credentials."""


class PayloadTooLarge(HermesQueueError):
    """An item or a record is larger than the configured cap."""

    exit_code = EXIT_USAGE


class SchemaTooNew(HermesQueueError):
    """The payload was written by a newer version of hermes-queue than this one."""


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """Attribute every exception that escapes the block to the stage `name`.

    A `TrajectoryFailure` gets it as its `stage`; any other exception is chained to an `EnvBug`.
    `HermesQueueError` and cancellation pass through unchanged.
    """
    try:
        yield
    except TrajectoryFailure as failure:
        failure.stage = failure.stage or name
        raise
    except HermesQueueError:
        raise
    except Exception as error:
        bug = EnvBug(foreign_error(error))
        bug.stage = name
        raise bug from error


def foreign_error(error: BaseException) -> str:
    """Describe an exception of an extension's code: `TypeError: text (path/of/extension.py:12)`.

    The line is the innermost one of the extension itself, not of what it calls in this project, the
    standard library or an installed package. It is left out if it is unknown. At most 1,400
    characters; nothing follows from them.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a foreign class may do anything in `__str__`
        text = "its text cannot be made"
    if len(text) > _TEXT_MAX:
        text = f"{text[:_TEXT_MAX]}..."
    place = _foreign_line(error)
    return printable(f"{type(error).__name__[:80]}: {text}{f' ({place})' if place else ''}")


def _foreign_line(error: BaseException) -> str:
    loose: list[tuple[str, str]] = []
    installed: list[tuple[str, str]] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        if package not in _PASSED_OVER and not file.startswith("<"):
            known = "-packages/" in file or package == "envs"
            (installed if known else loose).append((package, f"{file[-_PATH_MAX:]}:{line}"))
    # An installed extension is called before the libraries that it uses.
    frames = loose or [place for place in installed if place[0] == installed[0][0]]
    return frames[-1][1] if frames else ""
