"""A chat endpoint on loopback that plays given answers and records the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.agent.endpoint.connection import close_clients


@dataclass
class Raw:
    """An answer that is not JSON, or is not delivered properly."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    """Seconds before the answer."""
    drip_s: float = 0.0
    """Seconds before each byte of the body."""
    hang: bool = False
    """Read the request, never answer."""
    drop: bool = False
    """Close the connection instead of answering."""


Answer = tuple[int, dict[str, Any]] | Raw
Handler = Callable[[str, dict[str, Any]], Answer]


def completion(content: str | None = "hi", **more: Any) -> tuple[int, dict[str, Any]]:
    """A chat completion; `prompt_tokens`, `finish_reason`, `message` and `top` may be given."""
    top = more.pop("top", {})
    message = {"role": "assistant", "content": content, **more.pop("message", {})}
    finish = more.pop("finish_reason", "stop")
    usage = {"prompt_tokens": more.pop("prompt_tokens", 7), "completion_tokens": 2}
    choices = [{"index": 0, "message": message, "finish_reason": finish, **more}]
    return 200, {"choices": choices, "usage": usage, **top}


def no_such_path() -> Answer:
    return 404, {"error": {"message": "not found"}}


class ChatEndpoint:
    """Answers every POST by `handler(path, body)`."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.heads: list[str] = []
        """Request line and headers of each, in lower case."""
        self.port = 0
        """Given by the system, and kept when the server starts again."""
        self.connections: list[asyncio.StreamWriter] = []
        """All there ever were."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ChatEndpoint:
        await self.start()
        return self

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    async def __aexit__(self, *_: object) -> None:
        await close_clients()
        await self.stop()

    async def stop(self) -> None:
        """As if it were killed: connections are closed, nothing listens any more."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def hang_up(self) -> None:
        """Break all connections; it goes on to listen."""
        for connection in self.connections:
            connection.transport.abort()

    def bodies(self, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
        return [body for asked, body in self.requests if asked == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections.append(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [
            int(line.split(":")[1])
            for line in head.splitlines()
            if line.lower().startswith("content-length:")
        ]
        path = head.split()[1]
        body = json.loads(await reader.readexactly(lengths[0])) if lengths else {}
        self.heads.append(head.lower())
        self.requests.append((path, body))
        answer = self.handler(path, body)
        if not isinstance(answer, Raw):
            answer = Raw(json.dumps(answer[1]).encode(), answer[0])
        await asyncio.sleep(answer.wait_s)
        if answer.hang:
            await asyncio.Event().wait()
        if answer.drop:
            raise ConnectionResetError
        named = {"content-type": "application/json", "content-length": str(len(answer.body))}
        named |= answer.headers
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{k}: {v}" for k, v in named.items())]
        lines += ["", ""]
        writer.write("\r\n".join(lines).encode())
        if answer.drip_s:
            for byte in answer.body:
                await asyncio.sleep(answer.drip_s)
                writer.write(bytes([byte]))
                await writer.drain()
        else:
            writer.write(answer.body)
        await writer.drain()
