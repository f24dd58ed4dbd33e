"""How far a mix has come, as it is written down."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from hermes_queue.errors import ConfigurationError

_Digest = Annotated[int, Field(ge=0, lt=1 << 64)]


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False))
class SourceState:
    """How far a source has come. No model: its fields change with every group."""

    items: int = Field(default=0, ge=0)
    """Groups that were drawn."""
    jobs: int = Field(default=0, ge=0)
    time: float = 0.0
    """Virtual time at which its last group ends: groups drawn, each divided by its weight."""
    weight: float = 0.0
    """Weight with which `time` was counted."""
    kind: str = ""
    """Of the sampler."""
    epoch: int = Field(default=1, ge=1)
    after: int = Field(default=-1, ge=-1, lt=1 << 64)
    """Key of the last row of this epoch in its shuffled order; -1 = none."""
    at: int = Field(default=0, ge=0)
    """Place of the next row, for rows in order."""
    last: int = Field(default=-1, ge=-1, lt=1 << 64)
    """Digest of the id of the row before it."""
    looked: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict, max_length=16)
    """Rows of this epoch that were looked at, by what their pass rates say, for people."""
    page: list[_Digest] = Field(default_factory=list, max_length=4096)
    """Digests of the rows that come next, for a sampler that chooses several at once."""


class MixState(BaseModel):
    """How far a mix has come."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    version: int = Field(default=1, ge=1, le=1)
    clock: float = 0.0
    """Virtual time at which the last group began."""
    sources: dict[str, SourceState] = {}


DrawnGroup = tuple[str, str, _Digest, _Digest]
"""A group: source, step, digest of the row's id, 64 bits of the hash of its content."""
_DRAWN = TypeAdapter(list[DrawnGroup])


def read_state(text: str, name: str) -> MixState:
    """The state that was written down; a new one for "".

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return MixState.model_validate_json(text) if text else MixState()
    except ValidationError as error:
        raise _unreadable(name, error) from error


def read_pending(text: str, name: str) -> list[DrawnGroup]:
    """The groups of the last batch.

    Raises:
        ConfigurationError: they cannot be read.
    """
    try:
        return _DRAWN.validate_json(text) if text else []
    except ValidationError as error:
        raise _unreadable(name, error) from error


def pending_text(drawn: list[DrawnGroup]) -> str:
    """What `read_pending` reads."""
    return _DRAWN.dump_json(drawn).decode()


def _unreadable(name: str, error: ValidationError) -> ConfigurationError:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return ConfigurationError(
        f"mix {name!r}: its checkpoint cannot be read ({where or 'all of it'}: {first['msg']}); a "
        "newer hermes-queue may have written it, else begin anew after hermes-queue mix forget "
        f"{name}"
    )
