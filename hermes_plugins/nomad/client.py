"""Requests to one agent of a Nomad cluster, and its errors translated."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import (
    ConfigurationError,
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
)

if TYPE_CHECKING:
    import aiohttp

DEFAULT_ADDRESS = "http://127.0.0.1:4646"
UNIX = "unix://"
REQUEST_S = 60.0
AWAY_S = 10.0
"""After which a job asks again for a cluster that did not answer."""
MAX_ANSWER_BYTES = 64 << 20
"""Longest answer that is read as a whole."""
MAX_ERROR_BYTES = 4000
MAX_FRAME_BYTES = 4 << 20
"""Longest frame of a command's output; agents send kilobytes."""
INVALID = re.compile(r"errors? occurred|invalid|must (not )?be|missing|not allowed|unknown driver")
"""What an agent says of a job that it would refuse again; its status is 500 as for its failures."""
GONE = re.compile(r"not running|not found|unknown allocation|no such (alloc|container)|terminal")
"""What an agent says of an allocation that has ended."""
POLICY = "its policy needs list-jobs, read-job, submit-job, alloc-exec and alloc-lifecycle"


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What an agent has answered."""

    body: Any
    index: int = 0
    """For the next blocking query of the same path; 0 = it named none."""


def setting(value: object, variable: str) -> str | None:
    """A setting of ours, else Nomad's own variable."""
    return str(value) if value else os.environ.get(variable) or None


class NomadClient:
    """One agent, for one event loop; see `open`."""

    def __init__(self, settings: NomadSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self.address = ""
        self._base = ""

    async def open(self) -> None:
        """Connect. Idempotent.

        Raises ConfigurationError: the client library is missing, or a certificate is unreadable;
        SandboxError: the agent does not answer.
        """
        if self._session is not None:
            return
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "Nomad needs aiohttp: pip install 'hermes-queue[nomad]'"
            ) from error
        self.address = setting(self._settings.address, "NOMAD_ADDR") or DEFAULT_ADDRESS
        # Every running command holds a connection: the default of 100 would block further ones.
        connector: aiohttp.BaseConnector
        if self.address.startswith(UNIX):
            connector = aiohttp.UnixConnector(self.address.removeprefix(UNIX), limit=0)
            self._base = "http://localhost"
        else:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls())
            self._base = self.address.rstrip("/")
        token = self._settings.token.get_secret_value() if self._settings.token else None
        headers = {}
        if token := setting(token, "NOMAD_TOKEN"):
            headers["X-Nomad-Token"] = token
        # A WebSocket's request has no `allow_redirects`.
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, trace_configs=[tracing]
        )

    def _tls(self) -> ssl.SSLContext | bool:
        """How agents are known, and we to them. Raises ConfigurationError."""
        settings = self._settings
        ca = setting(settings.ca_file, "NOMAD_CACERT")
        cert = setting(settings.client_cert, "NOMAD_CLIENT_CERT")
        key = setting(settings.client_key, "NOMAD_CLIENT_KEY")
        if not (ca or cert):
            return True
        try:
            context = ssl.create_default_context(cafile=ca)
            if cert:
                context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"HERMES_QUEUE_NOMAD_CA_FILE, _CLIENT_CERT or _CLIENT_KEY: {ca}, {cert}, {key}: "
                f"{error}"
            ) from error
        return context

    async def close(self) -> None:
        """Idempotent, never raises."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _parameters(self, more: Mapping[str, str] | None) -> dict[str, str]:
        namespace = setting(self._settings.namespace, "NOMAD_NAMESPACE")
        region = setting(self._settings.region, "NOMAD_REGION")
        own = {"namespace": namespace, "region": region}
        return {name: value for name, value in own.items() if value} | dict(more or {})

    @property
    def _server_name(self) -> str | None:
        return setting(self._settings.tls_server_name, "NOMAD_TLS_SERVER_NAME")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise SandboxError("the connection to Nomad was not opened")
        return self._session

    async def request(
        self,
        path: str,
        method: str = "GET",
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout_s: float = REQUEST_S,
        gone: bool = False,
        making: bool = False,
    ) -> AgentAnswer:
        """An agent's answer to a request below /v1.

        Args:
            path: without /v1/.
            method: of HTTP.
            params: of the query, beside namespace and region.
            body: sent as JSON.
            timeout_s: for the whole answer.
            gone: the request is about a running container: "not found" means its end.
            making: nothing is lost yet, so a cluster that is away can be waited for.

        Raises:
            SlotLost: with `gone`, the allocation has ended.
            SandboxUnavailable: with `making`, the cluster does not answer or fails.
            SandboxRejected: it refuses the request, and would again.
            SandboxError: everything else.
        """
        import aiohttp

        try:
            async with self._opened().request(
                method,
                f"{self._base}/v1/{path}",
                params=self._parameters(params),
                json=body,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,  # the token is for this address
                server_hostname=self._server_name,
            ) as response:
                if response.status >= 300:
                    text = (await response.content.read(MAX_ERROR_BYTES)).decode("utf-8", "replace")
                    raise refusal(
                        f"{method} {path}", response.status, text, gone=gone, making=making
                    )
                data = await _read(response, path)
                index = response.headers.get("X-Nomad-Index", "")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            message = f"Nomad at {self.address}: {method} {path}: {_why(error)}"
            if making:
                raise SandboxUnavailable(message, retry_after_s=AWAY_S) from error
            raise SandboxError(message) from error
        if not data.strip():
            return AgentAnswer(None)
        try:
            found = await asyncio.to_thread(json.loads, data)
        except (ValueError, RecursionError) as error:
            raise SandboxError(
                f"Nomad answers {path} with what is no JSON: {data[:100]!r}"
            ) from error
        return AgentAnswer(found, int(index) if index.isdecimal() and len(index) < 20 else 0)

    @asynccontextmanager
    async def socket(
        self, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to a running allocation. Raises SlotLost or SandboxError."""
        import aiohttp

        try:
            socket = await self._opened().ws_connect(
                f"{self._base}/v1/{path}",
                params=self._parameters(params),
                max_msg_size=MAX_FRAME_BYTES,
                autoping=True,
                server_hostname=self._server_name,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(path, error.status, error.message, gone=True, making=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise SandboxError(f"Nomad at {self.address}: {path}: {_why(error)}") from error
        try:
            yield socket
        finally:
            # An agent that does not answer the farewell must not hold us.
            socket._response.close()


async def _refuse_redirect(
    session: aiohttp.ClientSession, context: object, found: aiohttp.TraceRequestRedirectParams
) -> None:
    """Stop before a request goes elsewhere: the token is for this address."""
    import aiohttp

    del session, context
    place = found.response.headers.get("Location", "")
    raise aiohttp.ClientError(f"it answers {found.response.status}, a redirect to {place[:200]}")


async def _read(response: aiohttp.ClientResponse, path: str) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_chunked(1 << 16):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise SandboxError(f"Nomad's answer to {path} is longer than 64 MiB")
    return b"".join(parts)


def _why(error: Exception) -> str:
    return str(error).strip()[:500] or type(error).__name__


def refusal(what: str, status: int, text: str, *, gone: bool, making: bool) -> SandboxError:
    """The error for an answer that says no; see `NomadClient.request`."""
    text = " ".join(text.split())[:1000]
    message = f"Nomad answers {status} to {what}: {text or 'no details'}"
    if status in (401, 403):
        return SandboxRejected(f"{message}. Check HERMES_QUEUE_NOMAD_TOKEN: {POLICY}")
    if gone and (status == 404 or GONE.search(text.lower())):
        return SlotLost(message)
    if status == 429 or status >= 500:
        if making and not INVALID.search(text.lower()):
            return SandboxUnavailable(message, retry_after_s=AWAY_S)
        return SandboxRejected(message) if making else SandboxError(message)
    return SandboxRejected(message) if status in (400, 404, 405, 413) else SandboxError(message)
