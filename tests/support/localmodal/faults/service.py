"""Faults for a server in another process: an additional gRPC method beside Modal's."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from grpclib import GRPCError, Status
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler

from hermes_queue.errors import ConfigurationError
from localmodal.wire import Guard, Stream

if TYPE_CHECKING:
    from localmodal.server import LocalModal

PATH = "/localmodal.Faults/Do"


class FaultService:
    """Takes {"do": name, ...arguments} and answers with a JSON object."""

    def __init__(self, server: LocalModal, guard: Guard) -> None:
        self._server = server
        self._guard = guard
        faults = server.faults
        self._actions: dict[str, Callable[..., Any]] = {
            "inject": faults.inject,
            "clear": faults.clear,
            "adjust": faults.adjust,
            "calls": lambda: dict(faults.calls),
            "lose_worker": server.lose_worker,
        }

    def __mapping__(self) -> Mapping[str, Handler]:
        return {PATH: Handler(self._do, Cardinality.UNARY_UNARY, Struct, Struct)}

    async def _do(self, stream: Stream) -> None:
        await self._guard("Faults", stream)
        given = MessageToDict(await stream.recv_message())
        action = self._actions.get(given.pop("do", ""))
        if action is None:
            raise GRPCError(Status.UNIMPLEMENTED, f"known: {', '.join(self._actions)}")
        try:
            answer = action(**given)
            if inspect.isawaitable(answer):
                answer = await answer
        except (KeyError, TypeError, ValueError) as error:
            raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
        await stream.send_message(ParseDict(answer or {}, Struct()))


class RemoteFaults:
    """The faults of a server in another process. Methods block; any thread may call them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Connect by the three MODAL_ variables that the server printed, in `environment`."""
        self._address = urlsplit(environment["MODAL_SERVER_URL"])
        self._metadata = {
            "x-modal-token-id": environment["MODAL_TOKEN_ID"],
            "x-modal-token-secret": environment["MODAL_TOKEN_SECRET"],
        }

    def inject(self, rpc: str, **options: Any) -> None:
        """See `FaultPlan.inject`."""
        self._call(do="inject", rpc=rpc, **options)

    def clear(self, rpc: str | None = None) -> None:
        """See `FaultPlan.clear`."""
        self._call(do="clear", rpc=rpc)

    def adjust(self, **changes: Any) -> None:
        """See `FaultPlan.adjust`."""
        self._call(do="adjust", **changes)

    def calls(self) -> dict[str, int]:
        """Number of calls per method."""
        return {name: int(count) for name, count in self._call(do="calls").items()}

    def lose_worker(self, sandbox_id: str) -> None:
        """See `LocalModal.lose_worker`."""
        self._call(do="lose_worker", sandbox_id=sandbox_id)

    def _call(self, **request: Any) -> dict[str, Any]:
        # In a thread: the caller's may have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self._ask(request))).result()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        async with Channel(self._address.hostname, self._address.port) as channel:
            method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(channel, PATH, Struct, Struct)
            try:
                reply = await method(ParseDict(request, Struct()), metadata=self._metadata)
            except GRPCError as error:
                raise ConfigurationError(f"localmodal refused: {error.message}") from error
            answer: dict[str, Any] = MessageToDict(reply)
            return answer
