"""A chat endpoint on loopback that serves so many calls at once and answers 429 to the others."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_USAGE = {"prompt_tokens": 100, "completion_tokens": 20}


def completion(message: dict[str, Any]) -> dict[str, Any]:
    """An answer with this message of the assistant."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"id": "c", "choices": [choice], "usage": _USAGE}


_COMPLETION = completion({"content": "7"})


@dataclass
class CappedEndpoint:
    """Serves `cap` calls at once; `async with` it, then look at the counters."""

    cap: int
    service_s: tuple[float, float]
    """A call takes a random time between the two."""
    retry_after_s: float | None = None
    """Sent with each 429, and with `status`."""
    paused: bool = False
    """Answers everything with `pause_status` and `X-Agl-Paused`."""
    pause_status: int = 429
    pause_s: float = 0.2
    """What it asks for while paused."""
    pause_answers: int | None = None
    """It ends a pause by itself with this answer of all."""
    status: int = 200
    """Another one is the answer to everything."""
    script: Callable[[bytes], dict[str, Any]] = lambda _: _COMPLETION
    """The completion for the body of a request."""
    metrics: Callable[[], str] | None = None
    """The page at `/metrics`; None = there is none."""
    readings: int = 0
    """Of that page."""
    url: str = ""
    inside: int = 0
    most: int = 0
    """Calls that were served at once."""
    served: int = 0
    refused: int = 0
    turned_away: int = 0
    """While paused."""
    busy_s: float = 0.0
    """Of all calls that were served."""
    begun: int = 0
    """Calls that were taken, whether they are done or not."""
    sessions: dict[str, int] = field(default_factory=dict)
    """Calls by `X-Session-ID`."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> CappedEndpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    def reset(self) -> None:
        """Count from here on."""
        self.most = self.served = self.refused = self.turned_away = 0
        self.busy_s = 0.0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.startswith("get "):
                    writer.write(self._page(head.split()[1]))
                    continue
                session = fields.get("x-session-id", "")
                self.sessions[session] = self.sessions.get(session, 0) + 1
                writer.write(await self._answer(body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the endpoint closes
        finally:
            writer.close()

    def _page(self, path: str) -> bytes:
        if path != "/metrics" or self.metrics is None:
            return _response(404, {"error": {"message": "not found"}})
        self.readings += 1
        text = self.metrics().encode()
        head = f"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\n\r\n"
        return head.encode() + text

    async def _answer(self, body: bytes) -> bytes:
        if self.paused:
            self.turned_away += 1
            self.paused = self.turned_away != self.pause_answers
            return _response(
                self.pause_status, {}, f"retry-after: {self.pause_s}", "x-agl-paused: 1"
            )
        wait = [] if self.retry_after_s is None else [f"retry-after: {self.retry_after_s}"]
        if self.status != 200:
            return _response(self.status, {"error": {"message": "broken"}}, *wait)
        if self.inside >= self.cap:
            self.refused += 1
            return _response(429, {"error": {"message": "too many calls"}}, *wait)
        self.inside += 1
        self.begun += 1
        self.most = max(self.most, self.inside)
        began = time.monotonic()
        try:
            await asyncio.sleep(random.uniform(*self.service_s))
            self.served += 1
            return _response(200, self.script(body))
        finally:
            self.busy_s += time.monotonic() - began
            self.inside -= 1


def _response(status: int, body: dict[str, Any], *headers: str) -> bytes:
    text = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(text)}", "", ""]).encode() + text
