"""Injected faults: misbehaviour that a test can request from the server."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2


@dataclass
class Conduct:
    """General behaviour of the server. Fields may be changed while it runs."""

    kill_slack_s: float = 0.2
    """Delay of the kill after a command's timeout. The SDK's own clock starts later than ours: with
    this delay its -1 usually wins, as on Modal; with 0 the kill's 137 often does."""
    result_lag_s: float = 0.0
    """Delay until a sandbox's end is visible in `poll` and `wait`. Modal has taken 35 s."""
    creates_per_s: float = 0.0
    """Rate limit of creation; beyond it, calls get RESOURCE_EXHAUSTED with the time to wait. 0 =
    unlimited."""
    create_burst: int = 1
    """Number of sandboxes that may be created at once before the rate limit applies."""


@dataclass
class Fault:
    """A fault of the next `count` calls of one method."""

    error: GRPCError | None
    delay_s: float
    count: int
    after_messages: int | None
    """For streams: index of the message that the error replaces."""
    result: Any = None
    """For builds: the `GenericResult` with which they end."""


class FaultPlan:
    """The faults of one server, and a count of all calls by method name.

    Tests plan faults from threads of their own while the server's loop takes them.
    """

    def __init__(self) -> None:
        self.conduct = Conduct()
        self.calls: collections.Counter[str] = collections.Counter()
        self._faults: dict[str, list[Fault]] = {}
        self._tokens = 0.0
        self._filled = 0.0

    def inject(
        self,
        rpc: str,
        *,
        status: str | None = None,
        message: str = "injected",
        retry_after_s: float | None = None,
        result: str | None = None,
        delay_s: float = 0.0,
        after_messages: int | None = None,
        count: int = 1,
    ) -> None:
        """Make the next `count` calls of `rpc` late, fail, or both.

        Args:
            rpc: e.g. "SandboxCreateV2" or "TaskExecStdioRead".
            status: name of a gRPC status, e.g. "UNAVAILABLE"; None = no error.
            message: message of the error or the result.
            retry_after_s: adds an RPCRetryPolicy to the error.
            result: for ImageJoinStreaming: result of the build, e.g. "TERMINATED", "TIMEOUT",
                "MEMORY_MANAGER_EVICTION", "FAILURE", "INTERNAL_FAILURE".
            delay_s: delay before the call is processed.
            after_messages: for methods that stream replies: number of messages before the error.
            count: number of calls; they queue behind faults that are already planned.

        Raises:
            ValueError: there is no such status or result, or the method has no result.
        """
        ending = None
        if result is not None:
            if rpc != "ImageJoinStreaming":
                raise ValueError("only ImageJoinStreaming ends with a result")
            number = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{result}")
            ending = api_pb2.GenericResult(status=number, exception=message)
        failure = None
        if status is not None:
            details = None
            if retry_after_s is not None:
                details = [api_pb2.RPCRetryPolicy(retry_after_secs=retry_after_s)]
            failure = GRPCError(Status[status], message, details)
        if after_messages is not None:
            after_messages = int(after_messages)  # from JSON, which has no integers
        fault = Fault(failure, delay_s, int(count), after_messages, ending)
        self._faults.setdefault(rpc, []).append(fault)

    def clear(self, rpc: str | None = None) -> None:
        """Remove the faults of one method, or all."""
        if rpc is None:
            self._faults.clear()
        else:
            self._faults.pop(rpc, None)

    def adjust(self, **changes: Any) -> None:
        """Change fields of `conduct`; ValueError if there is no such field."""
        known = {field.name for field in fields(Conduct)}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"{name} is unknown; known: {', '.join(sorted(known))}")
            setattr(self.conduct, name, value)

    async def before(self, rpc: str) -> None:
        """Count a call, and apply a fault that is due before its first reply."""
        self.calls[rpc] += 1
        fault = self._next(rpc, lambda fault: not fault.result and fault.after_messages is None)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.error is not None:
                raise fault.error

    def stream_fault(self, rpc: str) -> Fault | None:
        """The fault planned for this stream's replies."""
        return self._next(rpc, lambda fault: fault.after_messages is not None)

    def build_result(self) -> Any:
        """The result planned for the next build; None = success."""
        fault = self._next("ImageJoinStreaming", lambda fault: fault.result is not None)
        return fault.result if fault else None

    def _next(self, rpc: str, fits: Callable[[Fault], bool]) -> Fault | None:
        for fault in self._faults.get(rpc, ()):  # a thread may append meanwhile, and only append
            if fault.count > 0 and fits(fault):
                fault.count -= 1
                return fault
        return None

    def throttle_creation(self) -> None:
        """Take a token of the creation rate; GRPCError with the time to wait if there is none."""
        rate, burst = self.conduct.creates_per_s, self.conduct.create_burst
        if not rate:
            return
        now = time.monotonic()
        self._tokens = min(burst, self._tokens + (now - self._filled) * rate)
        self._filled = now
        if self._tokens < 1:
            wait = api_pb2.RPCRetryPolicy(retry_after_secs=(1 - self._tokens) / rate)
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, "Sandbox creation rate limit exceeded", [wait]
            )
        self._tokens -= 1
