"""The failure of an attempt, as it travels."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hermes_queue.errors import CAUSES, WIDE_CAUSES, Stage
from hermes_queue.wire.conversation import Wire

_KINDS_OF_OLDER = {
    "PoisonJob": "poison",
    "IsolationUnavailable": "isolation",
    "SandboxRejected": "rejected",
    "SlotKilled": "slot_killed",
}


def _kind_of_older(known: dict[str, Any]) -> str:
    """The kind of a failure whose record was written before records said it."""
    return _KINDS_OF_OLDER.get(known.get("type", "")) or str(known.get("cause", ""))


class Failure(Wire):
    """The reason why a trajectory has no score."""

    cause: str = Field(pattern=f"^({'|'.join(WIDE_CAUSES)})$")
    stage: Stage
    type: str
    message: str
    kind: str = Field(default_factory=lambda known: _kind_of_older(known), pattern="^[a-z_]+$")
    """The cause, or a narrower one that is part of it: a row of `errors.CAUSES`."""
    refillable: bool = Field(
        default_factory=lambda known: known["kind"] in CAUSES and CAUSES[known["kind"]].refilled
    )
    """Whether a new sample may succeed, as decided by the worker that recorded the failure."""
