"""What the end of a program means: an outcome of the agent, or whose failure.

A program that never got a reply of the model has not shown what the model can do, so nothing of it
is scored. Once it got one, its exit code means nothing: programs exit with 0 after a refused call,
and the model's own commands may decide the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_queue.errors import (
    DeadlineExceeded,
    ModelConfigError,
    ModelError,
    SandboxError,
    SlotKilled,
)
from hermes_queue.models import StopReason

NOT_FOUND = 127
NOT_EXECUTABLE = 126
KILLED = 137
GAVE_UP_S = 60.0
"""A call that has waited for so long is one that programs give up, whatever their model wants."""
SHOWN_CHARS = 1500
"""End of the program's output in a message."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    exit_code: int | None = 0
    """None: it did not end by itself."""
    asked: int = 1
    """Calls that reached the model's client."""
    delivered: int = 1
    """Replies that it got."""
    unanswered: bool = False
    """Whether it ended by itself while a call of its was open."""
    waited_s: float = 0.0
    """How long such a call had waited: the run was paused, or the endpoint busy or failing."""
    stop: StopReason | None = None
    """The limit that ended it."""
    failure: Exception | None = None
    """Why its calls could not be answered."""
    lost: SandboxError | None = None
    """The slot, its sandbox or the way to the endpoint failed."""
    slot_loss_ends: bool = False
    """An earlier attempt ended because its agent had killed the slot."""
    context_refused: bool = False
    """Whether its last call was too long for the model."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Refused calls by kind."""
    other_requests: Mapping[str, int] = field(default_factory=dict)
    """Requests that were no model call."""
    output: str = ""


def outcome(ended: Ended) -> StopReason:
    """The stop reason of an attempt that is scored.

    Raises:
        Exception: `ended.failure`; a `ModelError` or `ModelConfigError`, if the model's server was
            at fault, else a bug.
        ModelError: the program did not wait for its first reply, or not for a model server that
            was unavailable for long.
        SandboxError: `ended.lost`.
        DeadlineExceeded: time was up before the model's first reply.
        ModelConfigError: the program never got a reply, so it is not set up right.
    """
    if ended.failure is not None:
        raise ended.failure
    if ended.lost is not None:
        if isinstance(ended.lost, SlotKilled) and ended.slot_loss_ends and ended.delivered:
            return "slot_killed"
        raise ended.lost
    served = ended.delivered and ended.waited_s < GAVE_UP_S
    if ended.unanswered and ended.stop is None and not served:
        raise ModelError(_given_up(ended))
    if not ended.delivered:
        if ended.asked and ended.stop == "time_limit":
            raise DeadlineExceeded("time was up before the program had the model's first reply")
        raise ModelConfigError(_without_a_reply(ended))
    if ended.stop is not None:
        return ended.stop
    return "context_length" if ended.context_refused else "exited"


def _given_up(ended: Ended) -> str:
    waited = f", which had waited {ended.waited_s:.0f} s to be sent" if ended.waited_s >= 1 else ""
    return f"the program ended before the answer to its call{waited}{_shown(ended.output)}"


def _without_a_reply(ended: Ended) -> str:
    how = "was ended" if ended.exit_code is None else f"ended with exit code {ended.exit_code}"
    if ended.exit_code in (NOT_FOUND, NOT_EXECUTABLE):
        how += ", which means that it could not be started,"
    elif ended.exit_code == KILLED:
        how += ", which means that it was killed, perhaps for lack of memory,"
    if ended.stop is not None:
        how += f" at its limit ({ended.stop})"
    return f"the program {how} {_what_it_asked(ended)}{_shown(ended.output)}"


def _what_it_asked(ended: Ended) -> str:
    if ended.context_refused:
        return "because its first prompt is too long for the model"
    if ended.asked:
        refused = ", ".join(f"{count} {kind}" for kind, count in ended.refused.items())
        return f"without a single reply of the model (refused calls: {refused or 'none'})"
    if ended.other_requests:
        asked = ", ".join(f"{name} ({count})" for name, count in ended.other_requests.items())
        return f"without a valid model call; it asked for {asked[:500]}"
    return "without a single model call"


def _shown(output: str) -> str:
    end = output.strip()[-SHOWN_CHARS:]
    return f"; the end of its output: {end}" if end else "; it printed nothing"
