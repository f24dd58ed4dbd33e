"""The Atropos API over HTTP: one connection, one request at a time.

The API has no authentication, no durability and one event loop. A POST never opens a connection.
It reuses one that a GET has checked, so it reaches the same server process: a post to a server
whose trainer has not registered would leave that server useless.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.sinks.atropos.wire import TrainerLimits


class AtroposUnavailable(HermesQueueError):
    """The server does not answer, or has lost its data about us."""


class AtroposRefusal(HermesQueueError):
    """The server refuses a group, and would do so again."""


_ABOUT_THE_GROUP = frozenset({400, 413, 422})
"""Statuses that concern the group; other 4xx come from a proxy in front of the server."""


@dataclass(frozen=True, slots=True)
class EnvStatus:
    """The answer of `/status-env`, with sizes in groups of ours."""

    step: int
    """Batches formed so far, plus the step at which training started."""
    queue_size: int
    """Groups waiting for a batch: ours, and those of others that come before ours."""
    own_queue_size: int


class AtroposServer:
    """The client of one server. Blocking; not thread-safe.

    Every method but `close` raises `AtroposUnavailable` if the server does not answer.

    Args:
        url: `http://host:port`, or https.
        timeout_s: limit of one request. The server is blocked while it compresses a batch, which
            takes 9 s for 256 sequences of 8k tokens.

    Raises:
        ConfigurationError: the URL is invalid.
    """

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"--url: {url!r} must be http://host:port or https://host")
        self.url = url
        self.connection = 0
        """Number of the current or last connection: another one may lead to another process."""
        self._prefix = parts.path.rstrip("/")
        self._address = (parts.hostname, parts.port)
        self._secure = parts.scheme == "https"
        self._timeout_s = timeout_s
        self._http: http.client.HTTPConnection | None = None

    def limits(self) -> TrainerLimits | None:
        """The limits that the trainer registered; None before it has registered."""
        answer = self._exchange("GET", "/info")
        if answer.get("batch_size", -1) <= 0:
            return None
        return TrainerLimits(int(answer["batch_size"]), int(answer["max_token_len"]))

    def register_env(self, name: str, group_size: int, max_token_len: int) -> int | None:
        """Register; returns our id, or None until the trainer has asked for its first batch."""
        body = {"max_token_length": max_token_len, "desired_name": name, "weight": 1.0}
        answer = self._exchange("POST", "/register-env", {**body, "group_size": group_size})
        return int(answer["env_id"]) if answer.get("status") == "success" else None

    def status(self, env_id: int) -> EnvStatus:
        """The number of our groups that wait.

        Raises:
            AtroposUnavailable: the server does not answer, or does not know us.
        """
        answer = self._exchange("GET", "/status-env", {"env_id": env_id})
        try:
            return EnvStatus(
                int(answer["current_step"]),
                int(answer["queue_size"]),
                int(answer["self_queue_size"]),
            )
        except KeyError as error:
            raise AtroposUnavailable(f"{self.url} reports no step for us") from error

    def latest_group_overrides(self) -> dict[str, Any] | None:
        """The overrides of the last group that the server received; None if there is none."""
        answer = self._exchange("GET", "/latest_example")
        if not answer.get("tokens"):
            return None
        overrides = answer.get("group_overrides")
        return overrides if isinstance(overrides, dict) else {}

    def post(self, body: bytes) -> None:
        """Send one group, on the connection that the last call used.

        Raises:
            AtroposUnavailable: it may have arrived or not.
            AtroposRefusal: the server refuses it.
        """
        if self._http is None or self._http.sock is None:  # http.client would open another one
            raise AtroposUnavailable(f"{self.url} closed the connection")
        self._send("POST", "/scored_data", body, {"Content-Encoding": "gzip"})

    def disconnect(self, env_id: int) -> None:
        """Tell the server that we send no more."""
        self._exchange("POST", "/disconnect-env", {"env_id": env_id})

    def close(self) -> None:
        """Close the connection; any request except `post` opens a new one. Idempotent."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request that may be repeated, on a new connection if the old one is gone."""
        data = json.dumps(body).encode() if body is not None else None
        if self._http is not None and self._http.sock is not None:
            try:
                return self._send(method, path, data)
            except AtroposUnavailable:
                self.close()  # an idle connection is closed after five seconds
        self._connect()
        return self._send(method, path, data)

    def _connect(self) -> None:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=self._timeout_s)
        try:
            connection.connect()
        except OSError as error:
            raise AtroposUnavailable(f"{self.url} cannot be reached: {error}") from error
        self.connection += 1
        self._http = connection

    def _send(
        self, method: str, path: str, data: bytes | None, more: dict[str, str] | None = None
    ) -> dict[str, Any]:
        connection = self._http
        if connection is None:
            raise AtroposUnavailable(f"{self.url} closed the connection")
        headers = {"Content-Type": "application/json", **(more or {})}
        try:
            connection.request(method, self._prefix + path, data, headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise AtroposUnavailable(f"{method} {path}: {error!r}") from error
        if status >= 400:
            words = f"{method} {path}: {status} {text[:200].decode(errors='replace')}"
            if status in _ABOUT_THE_GROUP and path == "/scored_data":
                raise AtroposRefusal(words)
            raise AtroposUnavailable(words)
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise AtroposUnavailable(f"{method} {path}: the answer is not JSON") from error
        return answer if isinstance(answer, dict) else {}
