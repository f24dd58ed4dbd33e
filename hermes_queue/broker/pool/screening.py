"""Validation of everything a worker reads from its queues, before kombu sees it.

Celery and kombu trust the contents of a queue: a message that is not JSON, or has a list for its
id, ends the worker that reads it and is then delivered to the next one. Reading removes a
message from its queue, so an invalid one is logged with its beginning and dropped.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PrivateAttr,
    ValidationError,
    model_validator,
)

logger = logging.getLogger(__name__)

MESSAGE_MAX_BYTES = 256 << 10
"""Our messages have about a kilobyte: they carry ids, no data."""
EVIDENCE_CHARACTERS = 500
"""Length of the logged beginning of a refused message."""

_Id = Annotated[str, Field(min_length=1, max_length=512)]
_Seconds = Annotated[FiniteFloat, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Headers(_Part):
    task: _Id
    id: _Id
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    shadow: str | None = None
    eta: str | None = None
    expires: str | float | None = None
    retries: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    timelimit: Annotated[list[_Seconds | None], Field(min_length=2, max_length=2)] | None = None
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    ignore_result: bool | None = None
    stamps: dict[str, Any] | None = None
    stamped_headers: list[str] | None = None
    compression: None = None
    """A compressed body may unpack to any size, on the worker's main thread."""


class _DeliveryInfo(_Part):
    exchange: str
    routing_key: _Id
    redelivered: bool | None = None


class _Properties(_Part):
    delivery_tag: _Id
    delivery_info: _DeliveryInfo
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    body_encoding: Literal["utf-8", "base64"] | None = None


class _Message(_Part):
    """A message of Celery's protocol 2, as kombu's Redis transport writes it."""

    headers: _Headers
    properties: _Properties
    content_type: str = Field(alias="content-type")
    content_encoding: str = Field(alias="content-encoding")
    body: str
    _decoded: list[Any] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _body_is_one_of_a_task(self) -> _Message:
        body: str | bytes = self.body
        if self.properties.body_encoding == "base64":
            body = base64.b64decode(self.body, validate=True)
        if self.content_type == "application/json":  # Celery refuses other types unread
            decoded = json.loads(body)
            args, kwargs, embed = decoded
            if (type(args), type(kwargs)) != (list, dict) or not isinstance(embed, dict | None):
                raise ValueError("the body is not [positional, named, embedded]")
            self._decoded = decoded
        return self

    @property
    def decoded(self) -> list[Any] | None:
        """The body's positional, named and embedded arguments; None if it is not JSON."""
        return self._decoded


class Payload(dict[str, Any]):
    """What a message says, as kombu takes it."""

    body: list[Any] | None = None
    """What its body says; None if that is not JSON."""


class TaskMessage(NamedTuple):
    """A valid message of a task."""

    raw: bytes
    payload: Payload

    @property
    def tag(self) -> str:
        """Its delivery tag, under which it is acknowledged."""
        return str(self.payload["properties"]["delivery_tag"])


def read_message(raw: bytes) -> TaskMessage:
    """Return the message in these bytes.

    Raises:
        ValueError: they are not a task message; says why.
    """
    if len(raw) > MESSAGE_MAX_BYTES:
        raise ValueError(f"it has {len(raw)} bytes, at most {MESSAGE_MAX_BYTES} are read")
    try:
        # Decoded here: of bytes, json also reads UTF-16 and byte order marks, which would make the
        # record of an unacknowledged message, and with it all others' redelivery, unreadable.
        parsed = json.loads(raw.decode())
        body = _Message.model_validate(parsed).decoded
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}"[:EVIDENCE_CHARACTERS]) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:EVIDENCE_CHARACTERS]) from None
    payload = Payload(parsed)
    payload.body = body
    return TaskMessage(raw, payload)


class Screen:
    """Validates what a worker reads from its queues; counts and logs what it drops."""

    def __init__(self) -> None:
        self.refused = 0
        """Number of refused messages, over all connections."""

    def passed(self, queue: str, raws: Iterable[bytes]) -> list[TaskMessage]:
        """Return the valid ones of the messages that were read from `queue`."""
        messages = []
        for raw in raws:
            try:
                messages.append(read_message(raw))
            except ValueError as error:
                self.refuse(queue, raw, str(error))
        return messages

    def refuse(self, queue: str, raw: bytes, fault: str) -> None:
        """Log that a message is dropped. Of a broadcast, `queue` and `raw` are empty."""
        self.refused += 1
        logger.error(
            "a message of %s is dropped: %s. It begins with %r",
            queue or "remote control",
            fault[:EVIDENCE_CHARACTERS],
            raw[:EVIDENCE_CHARACTERS].decode(errors="replace"),
            extra={"action": "message_refused"},
        )
