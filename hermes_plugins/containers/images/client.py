"""A client of Docker Engine's API, which Podman has, too: found, opened, its errors translated."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_queue.errors import (
    ConfigurationError,
    HermesQueueError,
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
    TrajectoryFailure,
)

if TYPE_CHECKING:
    import aiodocker

UNIX = "unix://"
SOCKETS = (
    "/run/docker.sock",
    "/var/run/docker.sock",
    "$XDG_RUNTIME_DIR/docker.sock",
    "~/.docker/run/docker.sock",
    "/run/podman/podman.sock",
    "$XDG_RUNTIME_DIR/podman/podman.sock",
)
"""Where Docker Engine and Podman listen, with and without root."""
SETTING = "HERMES_QUEUE_DOCKER_HOST"
MAX_LINE_BYTES, MAX_LOG_CHARS = 1 << 20, 16_000
"""Of the output of a build or a pull."""
AWAY_S = 10.0
"""After which a job asks again for an engine that did not answer."""
MAX_ANSWER_BYTES = 64 << 20
"""Longest answer that is read as a whole: an engine that lists millions of files must not use up
the worker's memory."""


def find_engine(host: str | None) -> str:
    """The engine's address. Raises ConfigurationError: there is none; the message has the fix."""
    address = host or os.environ.get("DOCKER_HOST")
    if address:
        if address.partition("://")[0] not in ("unix", "tcp", "http", "https", "ssh"):
            raise ConfigurationError(
                f"{SETTING if host else 'DOCKER_HOST'}: {address!r} begins with none of unix://, "
                "tcp://, ssh://"
            )
        return address
    for name in SOCKETS:
        path = Path(os.path.expandvars(name)).expanduser()
        if path.is_socket():
            return f"{UNIX}{path}"
    raise ConfigurationError(
        "there is no container engine: neither HERMES_QUEUE_DOCKER_HOST nor DOCKER_HOST is set, "
        "and none of the usual sockets exists. Start Docker (systemctl start docker) or Podman "
        "(systemctl --user start podman.socket), or name the engine's address"
    )


class AnswerTooLong(SandboxError):
    """The engine's answer is longer than anybody reads."""


class EngineClient:
    """One engine, for one event loop; see `open`."""

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._docker: aiodocker.Docker | None = None
        self.address = ""

    @property
    def docker(self) -> aiodocker.Docker:
        """The client. Raises SandboxError: it is not open."""
        if self._docker is None:
            raise SandboxError("the container engine was not opened")
        return self._docker

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine."""
        return self.address.startswith(UNIX)

    async def open(self) -> None:
        """Connect. Idempotent.

        Raises ConfigurationError: no engine is named or found, or the client library is missing;
        SandboxError: it does not answer.
        """
        if self._docker is not None:
            return
        try:
            import aiodocker
            import aiohttp
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "container engines need aiodocker: pip install 'hermes-queue[docker]'"
            ) from error
        self.address = find_engine(self._host)
        # Every running command holds a connection: the default of 100 would block further ones.
        connector, url = None, self.address
        if self.is_local:
            connector = aiohttp.UnixConnector(self.address.removeprefix(UNIX), limit=0)
            url = f"{UNIX}localhost"  # the library fills in a host only with its own connector
        try:
            client = aiodocker.Docker(url=url, connector=connector)
        except (ValueError, OSError, ImportError) as error:
            raise ConfigurationError(f"{SETTING}: {self.address}: {error}") from error
        if connector is None:
            client.connector._limit = 0
        try:
            with translated(f"no engine answers at {self.address}, which {SETTING} can name"):
                await client.version()
        except BaseException:
            await _close(client, connector)
            raise
        self._docker, self._connector = client, connector

    async def close(self) -> None:
        """Idempotent, never raises."""
        client, self._docker = self._docker, None
        if client is not None:
            await _close(client, self._connector)

    async def json(self, path: str, method: str = "GET", **options: Any) -> Any:
        """A request's answer as JSON, None if it is empty; `options` as `request`.

        Raises AnswerTooLong.
        """
        async with self.request(path, method, **options) as response:
            parts, size = [], 0
            async for chunk in response.content.iter_chunked(1 << 16):
                parts.append(chunk)
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise AnswerTooLong(f"the engine's answer to {path} is longer than 64 MiB")
        data = b"".join(parts)
        return await asyncio.to_thread(json.loads, data) if data.strip() else None

    @asynccontextmanager
    async def request(
        self,
        path: str,
        method: str = "GET",
        *,
        params: Mapping[str, str] | None = None,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> AsyncIterator[Any]:
        """A request's response, an `aiohttp.ClientResponse`; its errors are raised untranslated.

        `data`: a mapping or list is sent as JSON, bytes and files as they are.
        """
        import aiohttp

        sent = dict(headers or {})
        if isinstance(data, dict | list):
            data, sent["Content-Type"] = json.dumps(data).encode(), "application/json"
        async with self.docker._query(
            path,
            method=method,
            params=params,
            data=data,
            headers=sent,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            yield response


async def progress(response: Any) -> tuple[str, str]:
    """Read the lines of a long action, such as a build: the end of its output, and the error or "".

    Both are bounded; lines that are no JSON objects are left out.
    """
    log, problem, line = "", "", b""
    async for chunk in response.content.iter_chunked(1 << 16):
        *lines, line = (line + chunk).split(b"\n")
        line = line[-MAX_LINE_BYTES:]
        for each in lines:
            text, error = _message(each)
            log, problem = (log + text)[-MAX_LOG_CHARS:], problem or error[:MAX_LOG_CHARS]
    text, error = _message(line)
    return (log + text)[-MAX_LOG_CHARS:], problem or error[:MAX_LOG_CHARS]


def _message(line: bytes) -> tuple[str, str]:
    try:
        found = json.loads(line)
    except ValueError:
        return "", ""
    if not isinstance(found, dict):
        return "", ""
    detail = found.get("errorDetail")
    error = found.get("error") or (detail.get("message") if isinstance(detail, dict) else "")
    return str(found.get("stream") or ""), str(error or "")


async def _close(client: aiodocker.Docker, connector: Any) -> None:
    await client.close()
    if connector is not None:
        await connector.close()


@contextmanager
def translated(what: str, *, gone: bool = False, making: bool = False) -> Iterator[None]:
    """Translate errors of the engine and of the connection to it.

    Args:
        what: the current action, e.g. "making a container".
        gone: the block works on a running container: "not found" and "not running" mean its end.
        making: nothing is lost yet, so an engine that is away can be waited for.

    Raises:
        SlotLost: with `gone`, the container has ended.
        SandboxUnavailable: with `making`, the engine does not answer.
        SandboxRejected: it refuses the request, and would again.
        SandboxError: everything else.
    """
    try:
        yield
    except (TrajectoryFailure, HermesQueueError):
        raise
    except Exception as error:
        raise _translated(error, what, gone=gone, making=making) from error


def _translated(error: Exception, what: str, *, gone: bool, making: bool) -> SandboxError:
    status = getattr(error, "status", None) if type(error).__name__ == "DockerError" else None
    text = str(getattr(error, "message", "") or error).strip() or "no details"
    message = f"{what}: {type(error).__name__}: {text[:1000]}"
    if status is None or status >= 900:  # aiodocker's own code for a lost connection
        if making:
            return SandboxUnavailable(message, retry_after_s=AWAY_S)
        return SandboxError(message)
    if gone and (status in (404, 409) or is_ended(text)):
        return SlotLost(message)
    if status in (400, 401, 403, 404):
        return SandboxRejected(message)
    return SandboxError(message)


def is_ended(text: str) -> bool:
    """Whether an engine's message says that a container does not run; statuses differ."""
    lower = text.lower()
    return any(
        words in lower
        for words in (
            "is not running",
            "no such container",
            "container state improper",
            "not running",
        )
    )
