"""Requests to one endpoint: connections shared by all trajectories of a process, bounded calls.

The SDK uses its aiohttp transport (extra `openai[aiohttp]`), which takes a third of the CPU of
its default one (docs/measurements.md).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from hermes_queue.agent.endpoint.choice import OPENAI_URL, without_credentials
from hermes_queue.agent.endpoint.recent import Recent
from hermes_queue.agent.tokens.servers.base import read
from hermes_queue.errors import ModelConfigError
from hermes_queue.settings.model import ANSWER_MAX_BYTES

if TYPE_CHECKING:
    import ssl

    import aiohttp
    import httpx2
    from openai import AsyncOpenAI

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Less than uvicorn's 5 s (vLLM, SGLang): no request shall meet a connection that closes."""
CONNECTIONS = 10_000
"""As many as a worker may have trajectories; calls are limited for the whole fleet instead."""
SESSION_HEADER = "X-Session-ID"
"""Makes routers keep a session's requests at one server (SkyRL's convention)."""
POLICY_HEADERS = ("X-Policy-Version", "X-Weight-Version")
"""Headers of answers in which a gateway may report the policy version. The first is also sent with
requests, as the requested version. The names are ours, since there is no convention."""

_reported_version: ContextVar[str | None] = ContextVar("reported_version", default=None)
"""Of the task, because several calls of one client may be open at once."""


@dataclass(slots=True)
class _Connections:
    """Connections of one event loop, and so of one process: a loop does not survive a fork."""

    http: dict[int, httpx2.AsyncClient] = field(default_factory=dict)
    """By the limit on answers, which is one setting."""
    clients: Recent[tuple[str | None, str, float, int], AsyncOpenAI] = field(default_factory=Recent)
    """The SDK's clients, by URL, key, timeout and limit on answers. They hold no connections: one
    that is forgotten is not closed, and what it has open is closed `KEEPALIVE_S` after its use."""
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a client is added to `http`."""


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()


class Endpoint:
    """The connection of one trajectory to an endpoint."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str,
        *,
        timeout_s: float,
        session: str = "",
        policy_version: str | None = None,
        answer_max_bytes: int = ANSWER_MAX_BYTES,
    ) -> None:
        """Prepare; the first request opens connections.

        `base_url` ends with `/v1`; None = OpenAI's own. `timeout_s` limits each request as a whole.
        `session`, for routers, and the requested `policy_version` are sent with each. An answer
        of more than `answer_max_bytes` raises `openai.APIConnectionError`.
        """
        self.base_url = base_url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._answer_max_bytes = answer_max_bytes
        self._headers = {SESSION_HEADER: session} if session else {}
        if policy_version is not None:
            self._headers[POLICY_HEADERS[0]] = policy_version

    @property
    def policy_version(self) -> str | None:
        """Version that a gateway reported in a header of this task's last answer to `post`."""
        return _reported_version.get()

    @property
    def name(self) -> str:
        """URL of the endpoint, without credentials."""
        return without_credentials(self.base_url or OPENAI_URL)

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST to a path below the endpoint, or to a URL; returns the body of the answer.

        Raises:
            TimeoutError: the whole request took longer; the SDK's limit is one on each read.
            ModelConfigError: the aiohttp transport is not installed.
            openai.OpenAIError: as the SDK does.
        """
        async with asyncio.timeout(self._timeout_s):
            response = await self._send(path, body)
        versions = (response.headers.get(name) for name in POLICY_HEADERS)
        _reported_version.set(next(filter(None, versions), None))
        content: bytes = response.content
        return content

    async def post_to_root(self, path: str, body: Mapping[str, Any]) -> bytes:
        """`post`, with a path below the server's root instead of its `/v1`."""
        return await self.post(await self._root() + path, body)

    async def models(self) -> list[str]:
        """Names of the models that the endpoint lists. Raises as `post`, or ValueError."""
        async with asyncio.timeout(self._timeout_s):
            answer = await self._send("/models", None)
        try:
            return [str(each["id"]) for each in json.loads(answer.content)["data"]]
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.name}/models did not return a list of models") from error

    async def ask_root(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        """`ask`, with a path below the server's root: `server_facts.Ask`."""
        return await self.ask(await self._root() + path, body)

    async def ask(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        """One request for the probe, see `probe.Send`; without a body, a GET."""
        await _shared(self._answer_max_bytes)
        import openai

        try:
            response = await self._send(path, body)
            return response.status_code, await read(json.loads, response.content)
        except openai.APIStatusError as error:
            return error.status_code, None
        except openai.APIConnectionError:
            return 0, None
        except (ValueError, RecursionError):
            return 200, None

    async def page(self, path: str) -> tuple[int, bytes]:
        """GET a path below the server's root: the status and the body, 0 = no usable answer."""
        await _shared(self._answer_max_bytes)
        import openai

        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._send(await self._root() + path, None)
                return answer.status_code, answer.content
        except openai.APIStatusError as error:
            return error.status_code, b""
        except (openai.APIConnectionError, TimeoutError):
            return 0, b""

    async def _root(self) -> str:
        return str((await self._client()).base_url).rstrip("/").removesuffix("/v1")

    async def _send(self, path: str, body: Mapping[str, Any] | None) -> Any:
        client = await self._client()
        import aiohttp
        import httpx2
        import openai

        options: Any = {"headers": self._headers}
        answer = httpx2.Response
        try:
            if body is None:
                return await client.get(path, cast_to=answer, options=options)
            return await client.post(path, body=dict(body), cast_to=answer, options=options)
        except aiohttp.ClientError as error:  # not all are translated, e.g. too long headers
            request = httpx2.Request("POST", str(client.base_url))
            raise openai.APIConnectionError(request=request) from error

    async def _client(self) -> AsyncOpenAI:
        shared = await _shared(self._answer_max_bytes)
        import openai

        key = (self.base_url, self._api_key, self._timeout_s, self._answer_max_bytes)
        if found := shared.clients.get(key):
            return found
        # aiohttp refuses a URL with credentials together with an Authorization header.
        url, headers = _credentials(self.base_url)
        made = openai.AsyncOpenAI(
            base_url=url,
            default_headers=headers,
            api_key=self._api_key,
            max_retries=0,
            timeout=openai.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S),
            http_client=shared.http[self._answer_max_bytes],
        )
        return shared.clients.keep(key, made)


def _credentials(url: str | None) -> tuple[str | None, dict[str, str]]:
    """The URL without user and password, and a header with them."""
    user, at, _ = urlsplit(url or "").netloc.rpartition("@")
    if url is None or not at:
        return url, {}
    token = base64.b64encode(unquote(user).encode()).decode()
    return without_credentials(url), {"Authorization": f"Basic {token}"}


async def _shared(answer_max_bytes: int) -> _Connections:
    """The running loop's connections, including those for this limit on answers.

    Await this before any import of the SDK: the first call imports it in a thread. On the event
    loop, with a busy machine and a cold disk, the import has taken longer than a lease and ended
    the worker. Raises ModelConfigError if aiohttp is not installed.
    """
    found = _connections.setdefault(asyncio.get_running_loop(), _Connections())
    if answer_max_bytes in found.http:
        return found
    async with found.opening:
        # Again: while this task waited for the lock, another one may have created the client. A
        # second one would replace it, and its connections would never be closed.
        if answer_max_bytes not in found.http:
            found.http[answer_max_bytes] = await asyncio.to_thread(_http_client, answer_max_bytes)
    return found


def _http_client(answer_max_bytes: int) -> httpx2.AsyncClient:
    import httpx2
    import openai

    from hermes_queue.agent.endpoint.bounded_answers import ACCEPT_ENCODING, bound_to

    limits = httpx2.Limits(
        # aiohttp has no limit on idle connections; max_connections=None would mean 100.
        max_connections=CONNECTIONS,
        max_keepalive_connections=None,
        keepalive_expiry=KEEPALIVE_S,
    )
    try:
        client = openai.DefaultAioHttpClient(
            limits=limits,
            # Do not follow redirects: an endpoint could send the conversation, and the key,
            # elsewhere. The answer 3xx is reported with its target.
            follow_redirects=False,
            verify=trusted_authorities(),
            headers={"Accept-Encoding": ACCEPT_ENCODING},
            event_hooks={"response": [bound_to(answer_max_bytes)]},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )
    except RuntimeError as error:
        raise ModelConfigError(
            f"agent openai: {error}: pip install 'hermes-queue[worker]'"
        ) from error
    # No argument of the client's reaches the transport.
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport.client = _session  # type: ignore[attr-defined]
    return client


def _session() -> aiohttp.ClientSession:
    """A session as the transport makes it, without cookies.

    They would be of all trajectories: a router that sticks to cookies would send all of them to one
    server, and whatever an endpoint sets would be kept.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(
        keepalive_timeout=KEEPALIVE_S, ssl=trusted_authorities(), limit=CONNECTIONS
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


@functools.cache
def trusted_authorities() -> ssl.SSLContext:
    """The authorities that endpoints may be certified by, read once per process (30 ms of CPU)."""
    import httpx2

    return httpx2.create_ssl_context()


async def close_clients() -> None:
    """Close the running loop's connections. Later calls open new ones."""
    if found := _connections.pop(asyncio.get_running_loop(), None):
        for client in found.http.values():
            await client.aclose()
