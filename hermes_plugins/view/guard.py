"""Who may ask, and what every answer says about itself.

Checks come in this order: the shape of the address, `Host`, where the request comes from, and what
a change needs. Roles are looked at afterwards, by `app.py`, since they differ between paths. A page
of another website is stopped here: it can make a browser send requests (forgery), or give its own
name the server's address (DNS rebinding), but neither with our `Host`, our `Origin` and our header.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_plugins.view.answers import Refusal

logger = logging.getLogger(__name__)

Headers = Mapping[bytes, list[bytes]]

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Of the page: no markup out of a record, nothing from elsewhere."""
DATA_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
)
"""Of everything else, should somebody open it by itself."""
COMMON = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer."""
METHODS = ("GET", "HEAD", "POST")
PATH_MAX = 4096
"""Octets of a path; a query may have as many again."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class Authority:
    """A host and a port, in the one way of writing it."""

    host: str
    port: int | None

    @classmethod
    def of(cls, text: str) -> Authority | None:
        """What `Host` names; None if it is not a name or an address with or without a port.

        An IPv6 address stands in brackets and may be written in any of its forms. Addresses in
        other notations than `a.b.c.d` are names, which nobody has allowed.
        """
        name, separator, digits = text.rpartition(":")
        if not separator or text.endswith("]"):
            name, digits = text, ""
        elif not re.fullmatch(r"[0-9]{1,5}", digits, re.ASCII):
            return None
        if name.startswith("[") and name.endswith("]"):
            try:
                host = f"[{ipaddress.IPv6Address(name[1:-1]).compressed}]"
            except ValueError:
                return None
        else:
            host = name.lower()
            if not _NAME.match(host):
                return None
        return cls(host, int(digits) if digits else None)


def of_address(host: str, port: int | None) -> Authority | None:
    """The authority of an address that a socket is bound to, or of a name."""
    try:
        written = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        written = host
    return Authority.of(written if port is None else f"{written}:{port}")


@dataclass(frozen=True)
class HostNames:
    """The names under which this server may be asked."""

    listening: frozenset[Authority]
    """HostNames of the socket itself, which speaks no TLS."""
    allowed: frozenset[Authority] = frozenset()
    """HostNames that were given by hand, such as that of a proxy in front."""

    def schemes(self, authority: Authority) -> tuple[str, ...]:
        """Schemes under which a page of this authority is ours; () = it is not."""
        if authority in self.allowed:
            return ("http", "https")
        port = 80 if authority.port is None else authority.port
        return ("http",) if Authority(authority.host, port) in self.listening else ()

    @classmethod
    def of(
        cls, host: str, port: int, allowed: Iterable[Authority] = (), *, name: str = ""
    ) -> HostNames:
        """Of a socket that listens on an address and a port; "" for a unix socket.

        Args:
            host: the address.
            port: the port, or the one that is forwarded to a unix socket.
            allowed: further names. One without a port stands for this port, and for those of
                http and https.
            name: the name that was given for the address.
        """
        names = [host, name or host] if host else ["localhost", "127.0.0.1"]
        if host and is_loopback(host):
            names.append("localhost")
        found = {of_address(name, port) for name in names if not is_wildcard(name)}
        if not host:
            found.add(Authority("localhost", 80))  # curl --unix-socket PATH http://localhost/
        ports = (None, 80, 443, port)
        more = {
            Authority(each.host, number)
            for each in allowed
            for number in (ports if each.port is None else (each.port,))
        }
        return cls(frozenset(each for each in found if each), frozenset(more))


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RequestGuard:
    """The outermost layer: checks each request, and gives each answer its headers."""

    def __init__(self, app: ASGIApp, names: HostNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Exceptions end here: the caller gets a 500 that says nothing of them."""
        if scope["type"] != "http":
            return
        started = False
        is_page = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": _with_common(message["headers"], page=is_page)}
            await send(message)

        try:
            headers = _headers(scope)
            path = check_path(scope)
            check(scope["method"], path, headers, self._names)
            is_page = not path.startswith(("/api/", "/static/"))
            # Segments stay encoded until they are looked up: %2F is part of an id.
            await self._app({**scope, "path": path, "root_path": ""}, receive, sending)
        except Refusal as refusal:
            if not started:
                is_page = False
                await refusal.response()(scope, receive, sending)
        except asyncio.CancelledError:
            # Only the end of the server cancels a request. Its task ends here all the same.
            if not started:
                is_page = False
                await ENDING.response()(scope, receive, sending)
        except Exception:
            logger.exception(
                "%s %s failed",
                scope["method"],
                scope["raw_path"][:200].decode("ascii", "replace"),  # encoded: no line of its own
                extra={"action": "view_request_failed"},
            )
            if started:
                raise
            is_page = False
            await FAULT.response()(scope, receive, sending)


ENDING = Refusal(503, "the server ends", "start it again", Connection="close")
FAULT = Refusal(500, "a fault of the server", "its log says more")


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


def _with_common(
    headers: Iterable[tuple[bytes, bytes]], *, page: bool
) -> list[tuple[bytes, bytes]]:
    given = {name.lower() for name, _ in headers}
    wanted = {
        **COMMON,
        "Cache-Control": "no-store",
        "Content-Security-Policy": PAGE_POLICY if page else DATA_POLICY,
    }
    more = [
        (name.lower().encode(), value.encode())
        for name, value in wanted.items()
        if name.lower().encode() not in given
    ]
    return [*headers, *more]


def check_path(scope: Mapping[str, Any]) -> str:
    """The path as it was sent.

    Raises:
        Refusal: it is too long, or the address of another server.
    """
    path = bytes(scope["raw_path"]).decode("ascii", "replace")
    if len(path) > PATH_MAX or len(scope["query_string"]) > PATH_MAX:
        raise Refusal(414, "the address is too long", "shorten the query")
    if not re.match(r"/(?!/)", path) or re.search(r"[\x00-\x20\x7f\ufffd\\]", path):
        raise Refusal(400, "not a path of this server")
    return path


def check(method: str, path: str, headers: Headers, names: HostNames) -> None:
    """Raise Refusal unless this request may come from our page, or from a program."""
    host = _host(headers, names)
    if b"transfer-encoding" in headers and b"content-length" in headers:
        # A proxy in front may read another body than we do, and another request behind it.
        raise Refusal(400, "the body has two lengths", Connection="close")
    if method not in METHODS:
        raise Refusal(405, f"{method[:20]} is not allowed", Allow=", ".join(METHODS))
    _check_fetch_site(method, path, headers)
    _check_origin(headers, host, names)
    if method == "POST":
        _check_change(headers)


def _host(headers: Headers, names: HostNames) -> Authority:
    sent = headers.get(b"host", [])
    authority = Authority.of(sent[0].decode("latin-1")) if len(sent) == 1 else None
    if authority is None or not names.schemes(authority):
        raise Refusal(
            400,
            "this server does not go by that name",
            "open the address that `hermes-queue view` printed, or start it with --allow-host NAME",
        )
    return authority


def _check_fetch_site(method: str, path: str, headers: Headers) -> None:
    """Browsers say where a request comes from; a page of ours may be opened from anywhere."""
    sites = headers.get(b"sec-fetch-site", [b"same-origin"])
    if sites == [b"same-origin"]:
        return
    is_page = method != "POST" and not path.startswith("/api/")
    navigates = headers.get(b"sec-fetch-mode") == [b"navigate"]
    if is_page and navigates and headers.get(b"sec-fetch-dest") == [b"document"]:
        return
    raise Refusal(403, "the request comes from another site", "open the page of this server")


def _check_origin(headers: Headers, host: Authority, names: HostNames) -> None:
    sent = headers.get(b"origin", [])
    if not sent:
        return
    origin = sent[0].decode("latin-1")
    scheme, separator, rest = origin.partition("://")
    authority = Authority.of(rest)
    if len(sent) == 1 and separator and authority and scheme in names.schemes(host):
        default = {"http": 80, "https": 443}[scheme]
        if authority.host == host.host and (authority.port or default) == (host.port or default):
            return
    raise Refusal(403, "the request comes from another origin", "open the page of this server")


def _check_change(headers: Headers) -> None:
    """What a form of another site cannot send without being asked about it first."""
    if headers.get(b"x-hq-request") != [b"1"]:
        raise Refusal(403, "a change needs the header X-HQ-Request: 1")
    kind = headers.get(b"content-type", [b""])
    if len(kind) != 1 or kind[0].partition(b";")[0].strip().lower() != b"application/json":
        raise Refusal(415, "a change is sent as JSON", "Content-Type: application/json")


def allowed_host(text: str) -> Authority:
    """What `--allow-host` names: a host, with or without a port.

    Raises:
        ValueError: it is no host.
    """
    authority = Authority.of(text)
    if authority is None:
        raise ValueError(f"{text!r} is not a host name, with or without a port")
    return authority
