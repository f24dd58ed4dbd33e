"""Validation of everything a worker reads from its queues, before kombu sees it.

Celery and kombu trust the contents of a queue: a message that is not JSON, or has a list for its
id, ends the worker that reads it and is then delivered to the next one. Reading removes a
message from its queue, so an invalid one is logged with its beginning and dropped.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from queue import Empty
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

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


class _Properties(_Part):
    delivery_tag: _Id
    delivery_info: dict[str, str | bool | int | None]
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    body_encoding: Literal["utf-8", "base64"] | None = None


class _TaskMessage(_Part):
    """A message of Celery's protocol 2, as kombu's Redis transport writes it."""

    headers: _Headers
    properties: _Properties
    content_type: str = Field(alias="content-type")
    content_encoding: str = Field(alias="content-encoding")
    body: str

    @model_validator(mode="after")
    def _body_is_one_of_a_task(self) -> _TaskMessage:
        body: str | bytes = self.body
        if self.properties.body_encoding == "base64":
            body = base64.b64decode(self.body, validate=True)
        if self.content_type == "application/json":  # Celery refuses other types unread
            args, kwargs, embed = json.loads(body)
            if (type(args), type(kwargs)) != (list, dict) or not isinstance(embed, dict | None):
                raise ValueError("the body is not [positional, named, embedded]")
        return self


def fault_of(raw: bytes) -> str:
    """Return why these bytes are not a task message; "" if they are one."""
    if len(raw) > MESSAGE_MAX_BYTES:
        return f"it has {len(raw)} bytes, at most {MESSAGE_MAX_BYTES} are read"
    try:
        _TaskMessage.model_validate(json.loads(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:EVIDENCE_CHARACTERS]
    except (ValueError, TypeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"[:EVIDENCE_CHARACTERS]
    return ""


class Screen:
    """Validates what one connection to the broker reads for its consumer."""

    def __init__(self) -> None:
        self.refused = 0
        """Number of refused messages, over all connections."""
        self._read: tuple[bytes, bytes] = (b"", b"")
        """Queue and body of the message being handled."""

    def install(self, connection: Any, channel: Any, connection_errors: tuple[Any, ...]) -> None:
        """Validate what `channel` reads, and survive exceptions from the handling of a message.

        The channel must not consume yet. `connection_errors` mean a lost one and are passed on.
        """
        client, poller = channel.client, connection.transport.cycle
        client.parse_response = self._screened(client.parse_response)
        passing = (Empty, *connection_errors, *connection.channel_errors)
        poller.on_readable = self._guarded(poller.on_readable, channel, passing)

    def _screened(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_response(connection: Any, command_name: str, **options: Any) -> Any:
            answer = parse(connection, command_name, **options)
            if command_name != "BRPOP" or not answer:
                return answer
            queue, raw = answer
            fault = fault_of(raw)
            if fault:
                self._refuse(queue, raw, fault)
                return None  # as if nothing had come
            self._read = queue, raw
            return answer

        return parse_response

    def _guarded(
        self, read: Callable[[int], None], channel: Any, passing: tuple[Any, ...]
    ) -> Callable[[int], None]:
        def on_readable(fileno: int) -> None:
            self._read = b"", b""
            try:
                read(fileno)
            except passing:
                raise
            except Exception as error:  # noqa: BLE001 - otherwise it would end one worker after the other
                queue, raw = self._read
                self._refuse(queue, raw, f"its handling raised {type(error).__name__}: {error}")
                if raw:
                    channel.basic_ack(json.loads(raw)["properties"]["delivery_tag"])

        return on_readable

    def _refuse(self, queue: bytes, raw: bytes, fault: str) -> None:
        self.refused += 1
        logger.error(
            "a message of %s is dropped: %s. It begins with %r",
            queue.decode(errors="replace").partition("\x06")[0] or "remote control",
            fault[:EVIDENCE_CHARACTERS],
            raw[:EVIDENCE_CHARACTERS].decode(errors="replace"),
            extra={"action": "message_refused"},
        )
