"""Who may ask: a GET of this protocol hands out a batch, and another one resets the server."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import secrets
from pathlib import Path

from hermes_plugins.atropos_server.http import TrainerAnswer, TrainerRequest, said
from hermes_queue.errors import ConfigurationError

_TOKEN_CHARACTERS = 16
_CHANGES = frozenset({"/batch", "/register", "/reset_data"})
"""Pages that change something. A user may look at the others in a browser."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", ""})


class TrainerGuard:
    """Lets in clients with the token, or on loopback any client but a web page.

    Raises:
        ConfigurationError: the token cannot be read, is short, or is missing where it is needed.
    """

    def __init__(self, host: str, token_file: Path | None) -> None:
        self._names = {*_LOOPBACK, host.lower()}
        self._token = None if token_file is None else _read(token_file)
        if self._token is None and not _is_loopback(host):
            raise ConfigurationError(
                f"--host {host}: whoever reaches the server can take batches and reset it, so that "
                "an address other than loopback needs --token-file"
            )

    def refused(self, request: TrainerRequest) -> TrainerAnswer | None:
        """The refusal of a request; None if it may be answered."""
        headers = request.headers
        # Browsers say what they fetch, and for whom: "none" is an address that a user typed, also
        # if a page there redirects to this one. Older ones say only the former, or nothing.
        is_browser = any(name.startswith("sec-fetch-") for name in headers)
        is_typed = headers.get("sec-fetch-site") == "none" and request.path not in _CHANGES
        if "origin" in headers or (is_browser and not is_typed):
            return said(403, "not for web pages")
        if self._token is None:
            # A page may have a name that it made resolve to this host.
            name = _host_name(headers.get("host", ""))
            return None if name in self._names else said(403, f"this server is not {name!r}")
        if _carries(self._token, headers.get("authorization", "")):
            return None
        return said(401, "send the token: http://trainer:TOKEN@host:port, or as a bearer token")


def _read(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file: {error}") from error
    if len(token) < _TOKEN_CHARACTERS:
        raise ConfigurationError(
            f"--token-file: the token has less than {_TOKEN_CHARACTERS} characters"
        )
    return token


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The name in a `Host` header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _carries(token: str, authorization: str) -> bool:
    """Whether a header has the token, as a bearer token or as a password."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif kind.lower() != "bearer":
        return False
    return secrets.compare_digest(value.encode(), token.encode())
