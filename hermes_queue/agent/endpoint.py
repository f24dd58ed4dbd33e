"""Requests to one endpoint: connections shared by all trajectories of a process, bounded calls.

The SDK runs on its aiohttp transport (extra `openai[aiohttp]`), which takes a third of the CPU of
its default one (docs/measurements.md).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from hermes_queue.errors import ModelConfigError

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Shorter than uvicorn's 5 s (vLLM, SGLang), so that no request meets a connection that closes."""
CONNECTIONS = 10_000
"""As many as a worker may have trajectories: the limit on calls is the fleet's."""
SESSION_HEADER = "X-Session-ID"
"""Routers of several servers keep a session's requests at one of them (SkyRL's convention)."""
POLICY_HEADERS = ("X-Policy-Version", "X-Weight-Version")
"""Of answers: what served them, where a gateway says it. The first also goes with requests, as
what is wanted. The names are ours: there is no common one."""


@dataclass(slots=True)
class _Connections:
    """Of one loop, and so of one process: a loop does not survive a fork."""

    http: httpx2.AsyncClient
    clients: dict[tuple[str | None, str, float], AsyncOpenAI] = field(default_factory=dict)
    """The SDK's view of an endpoint, by URL, key and timeout."""


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()


class Endpoint:
    """One trajectory's way to an endpoint."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str,
        *,
        timeout_s: float,
        session: str = "",
        policy_version: str | None = None,
    ) -> None:
        """Prepare; connections are opened by the first request.

        Args:
            base_url: up to `/v1`; None = OpenAI's own.
            api_key: sent as bearer.
            timeout_s: of one request as a whole.
            session: sent with each request, for routers.
            policy_version: the one that is wanted, likewise.
        """
        self.base_url = base_url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._headers = {SESSION_HEADER: session} if session else {}
        if policy_version is not None:
            self._headers[POLICY_HEADERS[0]] = policy_version
        self.policy_version: str | None = None
        """What a gateway said in a header of the last answer to `post` that served it."""

    @property
    def name(self) -> str:
        """The endpoint without credentials in its URL."""
        url = self.base_url or "https://api.openai.com/v1"
        scheme, _, rest = url.rpartition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST to a path below the endpoint, or to a URL; the body of a good answer.

        Bounded as a whole: the SDK's timeout is per read from the socket, so that an answer
        that drips would never end.

        Raises:
            TimeoutError: it took longer.
            ModelConfigError: the aiohttp transport is not installed.
            openai.OpenAIError: as the SDK does.
        """
        async with asyncio.timeout(self._timeout_s):
            response = await self._send(path, body)
        told = (response.headers.get(name) for name in POLICY_HEADERS)
        self.policy_version = next(filter(None, told), None)
        content: bytes = response.content
        return content

    async def post_to_root(self, path: str, body: Mapping[str, Any]) -> bytes:
        """As `post`, with a path below the server's root instead of its `/v1`."""
        return await self.post(self._root() + path, body)

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

    async def ask_root(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        """As `ask`, with a path below the server's root: `server_facts.Ask`."""
        return await self.ask(self._root() + path, body)

    async def ask(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        """One request of the probe's: `probe.Send`; without a body a GET."""
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

    def _root(self) -> str:
        return str(self._client().base_url).rstrip("/").removesuffix("/v1")

    async def _send(self, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx2

        client = self._client()
        if body is None:
            options: Any = {"headers": self._headers}
            return await client.get(path, cast_to=httpx2.Response, options=options)
        return await client.post(
            path,
            body=dict(body),
            cast_to=httpx2.Response,
            options={"headers": self._headers},
        )

    def _client(self) -> AsyncOpenAI:
        import openai

        shared = _shared()
        key = (self.base_url, self._api_key, self._timeout_s)
        if key not in shared.clients:
            # aiohttp refuses credentials in a URL beside a header that says the same.
            url, headers = _credentials(self.base_url)
            shared.clients[key] = openai.AsyncOpenAI(
                base_url=url,
                default_headers=headers,
                api_key=self._api_key,
                max_retries=0,
                timeout=openai.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S),
                http_client=shared.http,
            )
        return shared.clients[key]


def _credentials(url: str | None) -> tuple[str | None, dict[str, str]]:
    """The URL without user and password, and these as a header."""
    scheme, _, rest = (url or "").rpartition("://")
    user, at, host = rest.rpartition("@")
    if not at:
        return url, {}
    token = base64.b64encode(unquote(user).encode()).decode()
    return f"{scheme}://{host}", {"Authorization": f"Basic {token}"}


def _shared() -> _Connections:
    """The running loop's connections.

    Raises:
        ModelConfigError: aiohttp is not installed.
    """
    import httpx2
    import openai

    loop = asyncio.get_running_loop()
    found = _connections.get(loop)
    if found is None:
        limits = httpx2.Limits(
            # aiohttp knows no limit on idle connections; None as the first would mean 100.
            max_connections=CONNECTIONS,
            max_keepalive_connections=None,
            keepalive_expiry=KEEPALIVE_S,
        )
        try:
            http = openai.DefaultAioHttpClient(limits=limits)
        except RuntimeError as error:
            raise ModelConfigError(
                f"agent openai: {error}: pip install 'hermes-queue[worker]'"
            ) from error
        found = _connections[loop] = _Connections(http)
    return found


async def close_clients() -> None:
    """Close the running loop's connections. Later calls open new ones."""
    if found := _connections.pop(asyncio.get_running_loop(), None):
        await found.http.aclose()
