"""The application: its table of routes, and how one of them is answered.

    request ─► guard ─► route by its encoded path ─► role ─► parameters ─► a thread ─► JSON

A route is a plain function of a `ApiCall`. It runs in a thread, since index, files and Redis block,
and only a few do at a time; sending its answer holds nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_plugins.view.answers import Refusal, json_response
from hermes_plugins.view.guard import HostNames, RequestGuard
from hermes_plugins.view.index.cursors import PageError
from hermes_plugins.view.index.database import QueryTooSlow
from hermes_plugins.view.index.terms import FilterError
from hermes_plugins.view.records.raw import UnreadableRecord
from hermes_plugins.view.site import ViewSite
from hermes_plugins.view.sources.base import RecordGone
from hermes_plugins.view.tokens import Role, ViewSession
from hermes_queue.errors import ConfigurationError, HermesQueueError, RedisFull, RedisUnavailable

AT_ONCE = 8
"""Requests that run at the same time."""
AT_REDIS = 4
"""Those among them that ask Redis: where it does not answer, the others find a place."""
WAITING_MAX = 64
WAIT_S = 10.0
BODY_MAX_BYTES = 64 << 10
BODY_S = 10.0
VALUE_MAX = 2048
"""Characters of a query parameter."""
ID_MAX = 512
TOKEN_HINT = "open the address that `hermes-queue view` printed"  # noqa: S105 - says where it is


@dataclass(frozen=True)
class ApiCall:
    """One request whose sender may make it."""

    site: ViewSite
    session: ViewSession
    address: str
    """Of the sender, for counting wrong tokens and for the log."""
    path: Mapping[str, str]
    """Ids in the path, decoded."""
    query: Mapping[str, str]
    body: Mapping[str, Any]
    gzip: bool
    """Whether the sender unpacks."""
    secure: bool
    """Whether it came to a proxy by TLS."""

    def number(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        """A whole number among the parameters.

        Raises:
            Refusal: it is not one, or out of bounds.
        """
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise Refusal(400, f"{name} is not a whole number")
        if not least <= int(text) <= most:
            raise Refusal(400, f"{name} must be {least} to {most}")
        return int(text)

    def json(self, value: Any) -> Response:
        """An answer."""
        return json_response(value, compress=self.gzip)


Answering = Callable[[ApiCall], Response]


def nothing() -> Refusal:
    """A new one each time: an exception that is raised again keeps the frames of every time."""
    return Refusal(404, "there is nothing of that name")


@dataclass(frozen=True)
class Route:
    """One row of the API."""

    method: str
    path: str
    """Segments in braces are ids, one segment each."""
    answer: Answering
    role: Role | None = "view"
    """Needed for it; None = nobody is asked."""
    parameters: tuple[str, ...] | None = ()
    """Those of the query; others are refused. None: the query is not looked at."""
    needs_slot: bool = True
    """False for what takes no time, so that a login never waits."""
    asks_redis: bool = False
    """Whether it may wait for Redis."""


def make_app(site: ViewSite, names: HostNames, routes: Iterable[Route]) -> ASGIApp:
    """The application, with its guard."""
    slots = Slots()
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    paths = [Path(path, _Endpoint(site, slots, same)) for path, same in by_path.items()]
    return RequestGuard(Router(paths, redirect_slashes=False, default=_nothing_there), names)


class Slots:
    """Lets a few requests run, a few more wait, and refuses the rest."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._at_redis = asyncio.Semaphore(AT_REDIS)
        self._waiting = 0

    @asynccontextmanager
    async def one(self, *, asks_redis: bool) -> AsyncIterator[None]:
        """Hold one for the block.

        Raises:
            Refusal: none became free.
        """
        if asks_redis:
            async with self._held(self._at_redis), self._held(self._free):
                yield
        else:
            async with self._held(self._free):
                yield

    @asynccontextmanager
    async def _held(self, free: asyncio.Semaphore) -> AsyncIterator[None]:
        busy = Refusal(503, "too many requests at once", "try again", Retry_After="1")
        if self._waiting >= WAITING_MAX:
            raise busy
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await free.acquire()
        except TimeoutError:
            raise busy from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            free.release()


class _Endpoint:
    """Answers all methods of one path. An object, so that Starlette passes ASGI through."""

    def __init__(self, site: ViewSite, slots: Slots, routes: Iterable[Route]) -> None:
        self._site = site
        self._slots = slots
        self._routes: dict[str, Route] = {}
        for route in routes:
            self._routes.setdefault(route.method, route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        route = self._routes.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allow = [*self._routes, *(["HEAD"] if "GET" in self._routes else [])]
            raise Refusal(405, "the method is not allowed here", Allow=", ".join(allow))
        session = who(self._site, request)
        if not session.may(route.role):
            raise _not_allowed(session)
        call = ApiCall(
            self._site,
            session,
            address=address_of(request),
            path=_path(request, route),
            query=_query(request, route),
            body=await _body(request) if route.method == "POST" else {},
            gzip="gzip" in request.headers.get("accept-encoding", ""),
            secure=request.headers.get("origin", "").startswith("https:"),
        )
        response = await self._run(route, call)
        if request.method == "HEAD":
            response = _head_of(response)
        await response(scope, receive, send)

    async def _run(self, route: Route, call: ApiCall) -> Response:
        if not route.needs_slot:
            return await run_in_threadpool(_answer, route, call)
        async with self._slots.one(asks_redis=route.asks_redis):
            return await run_in_threadpool(_answer, route, call)


def _head_of(response: Response) -> Response:
    """The same without a body: a stream would otherwise go on for nobody."""
    bare = Response(status_code=response.status_code)
    bare.raw_headers = response.raw_headers
    return bare


def _answer(route: Route, call: ApiCall) -> Response:
    try:
        return route.answer(call)
    except FilterError as error:
        raise Refusal(400, str(error), error.hint, at=error.at) from error
    except PageError as error:
        raise Refusal(400, str(error), error.hint) from error
    except QueryTooSlow as error:
        raise Refusal(400, str(error), "narrow it") from error
    except RecordGone as error:
        raise Refusal(410, text_of_error(error), "the index is brought up to date") from error
    except UnreadableRecord as error:
        raise Refusal(422, text_of_error(error), "its row in lists says what is known") from error
    except (RedisUnavailable, RedisFull) as error:
        raise Refusal(503, text_of_error(error), "the page goes on when Redis answers") from error
    except ConfigurationError as error:
        raise Refusal(409, text_of_error(error)) from error
    except HermesQueueError as error:
        raise Refusal(503, text_of_error(error)) from error


def text_of_error(error: Exception) -> str:
    """What is wrong, and what was noted about it on the way."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def address_of(request: Request) -> str:
    """The sender's address; "local" behind a unix socket."""
    return request.client.host if request.client else "local"


def who(site: ViewSite, request: Request) -> ViewSession:
    """Whose request it is: by its token, or else by its cookie.

    Raises:
        Refusal: a wrong token, or too many of them. A wrong cookie is nobody's.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return ViewSession(site.keys.of_token(token.strip(), address_of(request)))
    for pair in request.headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        # Other servers of this host may have set one of that name, which then comes first.
        if name == site.cookie and (session := site.keys.open(value)).role:
            return session
    return ViewSession()


def _not_allowed(session: ViewSession) -> Refusal:
    if session.role is None:
        return Refusal(401, "a token is needed", TOKEN_HINT)
    return Refusal(403, "this needs the role operate", "start `hermes-queue view` with --actions")


def _path(request: Request, route: Route) -> dict[str, str]:
    """The ids in the path. Of a page it is left as it is: the page reads it."""
    given: dict[str, str] = request.path_params
    return given if route.parameters is None else {k: decoded(v) for k, v in given.items()}


def decoded(segment: str) -> str:
    """An id in a path.

    Raises:
        Refusal: it is not text; no id is like that.
    """
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise nothing() from None
    if not text or len(text) > ID_MAX or not text.isprintable():
        raise nothing()
    return text


def _query(request: Request, route: Route) -> dict[str, str]:
    if route.parameters is None:
        return {}
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=16,
        )
    except ValueError:
        raise Refusal(400, "the query is not readable") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in route.parameters or name in found:
            known = ", ".join(route.parameters) or "none"
            raise Refusal(400, f"unknown or repeated parameter {name[:40]!r}", f"known: {known}")
        if len(value) > VALUE_MAX or "\0" in value:
            raise Refusal(400, f"{name} is too long, or no text")
        found[name] = value
    return found


async def _body(request: Request) -> Mapping[str, Any]:
    octets = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                octets += part
                if len(octets) > BODY_MAX_BYTES:
                    raise Refusal(413, "the body is too large", Connection="close")
    except (TimeoutError, ClientDisconnect):
        raise Refusal(408, "the body did not come", Connection="close") from None
    try:
        value = json.loads(octets)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not a JSON object")
    return value


async def _nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
    raise nothing()
