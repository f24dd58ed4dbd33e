"""A chat endpoint on loopback that is told what to answer and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hermes_queue.agent.endpoint import close_clients

Answer = tuple[int, dict[str, Any]]
Handler = Callable[[str, dict[str, Any]], Answer]


def completion(content: str | None = "hi", **more: Any) -> Answer:
    """A chat completion; `prompt_tokens`, `finish_reason` and `message` may be given."""
    message = {"role": "assistant", "content": content, **more.pop("message", {})}
    finish = more.pop("finish_reason", "stop")
    usage = {"prompt_tokens": more.pop("prompt_tokens", 7), "completion_tokens": 2}
    choices = [{"index": 0, "message": message, "finish_reason": finish, **more}]
    return 200, {"choices": choices, "usage": usage}


def no_such_path() -> Answer:
    return 404, {"error": {"message": "not found"}}


class ChatEndpoint:
    """Answers every POST by `handler(path, body)`."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ChatEndpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_clients()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def bodies(self, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
        return [body for asked, body in self.requests if asked == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1])
            for line in head.splitlines()
            if line.lower().startswith("content-length:")
        )
        path = head.split()[1]
        body = json.loads(await reader.readexactly(length))
        self.requests.append((path, body))
        status, answer = self.handler(path, body)
        data = json.dumps(answer).encode()
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
        lines += [f"content-length: {len(data)}", "", ""]
        writer.write("\r\n".join(lines).encode() + data)
        await writer.drain()
