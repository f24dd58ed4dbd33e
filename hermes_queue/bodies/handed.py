"""What an agent has done, on its way to the worker that grades it."""

from __future__ import annotations

from typing import Literal

import msgpack
from pydantic import Field

from hermes_queue.bodies import codec
from hermes_queue.models import Message, ScoredTrajectory, Wire

VERSION = 1


class HandedWork(Wire):
    """One hand-over. Only workers write and read it; an agent never sees it."""

    version: Literal[1] = 1
    handover: str = Field(pattern="^[0-9a-f]{32}$")
    """Its token, which the trajectory in Redis names too."""
    env_version: str
    snapshot_id: str = Field(default="", pattern="^[A-Za-z0-9-]{0,200}$")
    """Copy of the slot's files; "" = `work` has what is needed."""
    work: bytes | None = None
    """What the env took out of the slot; None = it takes nothing."""
    shown: tuple[Message, ...] | None = None
    """The transcript for the verifier if it is not that of the record."""
    record: ScoredTrajectory
    """What is known of the trajectory: all but what measuring adds."""


def encode_handed(work: HandedWork) -> bytes:
    """Encode a hand-over. Raises the same as `codec.encode_record`."""
    data = work.model_dump(mode="python", exclude={"record"})
    data["record"] = codec.encode_record(work.record)
    packed: bytes = msgpack.packb(data)
    return packed


def decode_handed(body: bytes) -> HandedWork:
    """Decode a hand-over.

    Raises:
        SchemaTooNew: a newer version wrote it.
        ValueError: it is damaged.
    """
    try:
        data = msgpack.unpackb(body)
        codec.refuse_newer("the work", data["version"], VERSION)
        data["record"] = codec.decode_record(data["record"])
        return HandedWork.model_validate(data)
    except (TypeError, KeyError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not a hand-over: {error}") from error
