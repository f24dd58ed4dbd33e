"""gRPC plumbing: handlers from protobuf descriptors, ids, tokens, error details."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import StatusDetailsCodecBase
from modal_proto import api_pb2

from localmodal.faults.plan import FaultPlan

Stream = Any
"""`grpclib.server.Stream`; its message types depend on the method."""
Request = Any
"""The method's protobuf message. Fields differ between SDK versions."""

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id(prefix: str, length: int = 26) -> str:
    """A random id in Modal's format; `sb-` with 22 characters means the older protocol."""
    return prefix + "-" + "".join(secrets.choice(ALPHABET) for _ in range(length))


class Tokens:
    """Short-lived tokens in JWT format.

    The SDK only reads their `exp`. We check the signature, so that a sandbox that can reach the
    port cannot control others.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, subject: str, lifetime_s: float) -> str:
        """A token for `subject`."""
        body = {"sub": subject, "exp": int(time.time() + lifetime_s)}
        parts = ({"alg": "HS256", "typ": "JWT"}, body)
        text = ".".join(_encode(json.dumps(part).encode()) for part in parts)
        return f"{text}.{self._signature(text)}"

    def subject(self, token: str) -> str | None:
        """The subject of a token; None if it is malformed, forged or expired."""
        text, _, signature = token.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        middle = text.split(".")[1]
        body = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return str(body["sub"]) if body["exp"] > time.time() else None

    def _signature(self, text: str) -> str:
        return _encode(hmac.new(self._key, text.encode(), hashlib.sha256).digest())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class StatusDetails(StatusDetailsCodecBase):
    """Error details in the SDK's format: an `RPCStatus` in the trailer."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        """See grpclib."""
        encoded = api_pb2.RPCStatus(code=status.value, message=message or "")
        for detail in details or ():
            encoded.details.add().Pack(detail, type_url_prefix="type.modal.com/")
        return bytes(encoded.SerializeToString())

    def decode(self, status: Status, message: str | None, data: bytes) -> Any:
        """See grpclib."""
        return list(api_pb2.RPCStatus.FromString(data).details)


Method = Callable[..., Any]
Guard = Callable[[str, Stream], Awaitable[None]]
"""Called with the method's name before each call; raises GRPCError to refuse it."""


class Service:
    """Serves one protobuf service with the methods of `target` that have the same names.

    Unary methods take (request, stream) and return the reply; server streams are async
    generators of replies; client streams take only the stream.
    """

    def __init__(self, descriptor: Any, target: object, faults: FaultPlan, guard: Guard) -> None:
        self._faults = faults
        self._guard = guard
        self._handlers: dict[str, Handler] = {}
        for method in descriptor.methods:
            function: Any = getattr(target, method.name, None)
            call, cardinality = self._unary, Cardinality.UNARY_UNARY
            if function is None:
                # Otherwise the SDK would see "Missing content-type header".
                call, cardinality = self._refuse, Cardinality.STREAM_STREAM
            elif method.client_streaming:
                call, cardinality = self._client_stream, Cardinality.STREAM_UNARY
            elif method.server_streaming:
                call, cardinality = self._server_stream, Cardinality.UNARY_STREAM
            self._handlers[f"/{descriptor.full_name}/{method.name}"] = Handler(
                partial(call, method.name, function),
                cardinality,
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
            )

    def __mapping__(self) -> Mapping[str, Handler]:
        return self._handlers

    async def _begin(self, name: str, stream: Stream) -> Request:
        await self._guard(name, stream)
        await self._faults.before(name)
        return await stream.recv_message()

    async def _refuse(self, name: str, function: Method, stream: Stream) -> None:
        raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not supported by localmodal")

    async def _unary(self, name: str, function: Method, stream: Stream) -> None:
        request = await self._begin(name, stream)
        await stream.send_message(await function(request, stream))

    async def _server_stream(self, name: str, function: Method, stream: Stream) -> None:
        request = await self._begin(name, stream)
        fault = self._faults.stream_fault(name)
        sent = 0
        async for reply in function(request, stream):
            if fault and fault.error and sent == fault.after_messages:
                break
            await stream.send_message(reply)
            sent += 1
        if fault and fault.error:
            raise fault.error

    async def _client_stream(self, name: str, function: Method, stream: Stream) -> None:
        await self._guard(name, stream)
        await self._faults.before(name)
        await stream.send_message(await function(stream))
