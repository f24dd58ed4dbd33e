"""Requests to one endpoint: connections shared by all trajectories of a process, bounded calls."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CONNECT_TIMEOUT_S = 5.0
SESSION_HEADER = "X-Session-ID"
"""Routers of several servers keep a session's requests at one of them (SkyRL's convention)."""

_clients: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[int, str | None, str, float], AsyncOpenAI]
] = WeakKeyDictionary()
"""A client is bound to its loop and must not cross a fork, hence also the pid in the key."""


class Endpoint:
    """One trajectory's way to an endpoint."""

    def __init__(
        self, base_url: str | None, api_key: str, *, timeout_s: float, session: str = ""
    ) -> None:
        """Prepare; connections are opened by the first request.

        Args:
            base_url: up to `/v1`; None = OpenAI's own.
            api_key: sent as bearer.
            timeout_s: of one request as a whole.
            session: sent with each request, for routers.
        """
        self.base_url = base_url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._headers = {SESSION_HEADER: session} if session else {}

    @property
    def name(self) -> str:
        """The endpoint without credentials in its URL."""
        url = self.base_url or "https://api.openai.com/v1"
        scheme, _, rest = url.rpartition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST to a path below the endpoint, or to a URL; the body of a good answer.

        Bounded as a whole: the SDK's timeout is per read from the socket.

        Raises:
            TimeoutError: it took longer.
            openai.OpenAIError: as the SDK does.
        """
        async with asyncio.timeout(self._timeout_s):
            response = await self._send(path, body)
        content: bytes = response.content
        return content

    async def post_to_root(self, path: str, body: Mapping[str, Any]) -> bytes:
        """As `post`, with a path below the server's root instead of its `/v1`."""
        base = str(self._client().base_url).rstrip("/").removesuffix("/v1")
        return await self.post(base + path, body)

    async def models(self) -> list[str]:
        """Names of the models that the endpoint lists.

        Raises:
            TimeoutError, openai.OpenAIError: as `post`.
            ValueError: the answer is no such list.
        """
        import httpx2

        async with asyncio.timeout(self._timeout_s):
            answer = await self._client().get("/models", cast_to=httpx2.Response)
        try:
            return [str(each["id"]) for each in json.loads(answer.content)["data"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self.name}/models is no list of models") from error

    async def ask(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """One request of the probe's: `probe.Send`."""
        import openai

        try:
            response = await self._send(path, body)
            return response.status_code, json.loads(response.content)
        except openai.APIStatusError as error:
            return error.status_code, None
        except openai.APIConnectionError:
            return 0, None
        except (ValueError, RecursionError):
            return 200, None

    async def _send(self, path: str, body: Mapping[str, Any]) -> Any:
        import httpx2

        return await self._client().post(
            path,
            body=dict(body),
            cast_to=httpx2.Response,
            options={"headers": self._headers},
        )

    def _client(self) -> AsyncOpenAI:
        import openai

        clients = _clients.setdefault(asyncio.get_running_loop(), {})
        key = (os.getpid(), self.base_url, self._api_key, self._timeout_s)
        if key not in clients:
            clients[key] = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self._api_key,
                max_retries=0,
                timeout=openai.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S),
            )
        return clients[key]


async def close_clients() -> None:
    """Close the running loop's connections. Later calls open new ones."""
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.close()
