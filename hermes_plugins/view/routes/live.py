"""The deployment as it is now: the overview, its stream, and dead letters."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from hermes_plugins.view import present
from hermes_plugins.view.actions.letters import READ_MAX, letter_filter
from hermes_plugins.view.answers import Refusal, to_json
from hermes_plugins.view.app import ApiCall, Route, nothing
from hermes_plugins.view.routes.trajectory import number
from hermes_plugins.view.site import Live, ViewSite
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.dead import DeadLetters, Letter
from hermes_queue.ledger.ledger import Ledger

STREAMS_MAX = 64
COMMENT_S = 15.0
RETRY_MS = 2000
_EVENTS_MAX = 100
"""Events that wait for one slow reader; with more, he is disconnected and begins anew."""
LETTERS_MAX = 500
NUMBER_MAX = 100_000
"""Of a message of a running trajectory."""
_LONG = ("job", "log", "died", "reason")


def overview(call: ApiCall) -> Response:
    """The whole deployment."""
    if call.site.overview is None:
        raise _no_redis()
    return call.json(call.site.overview())


def events(call: ApiCall) -> Response:
    """The stream of changes, until the reader leaves or the server ends."""
    if call.site.live is None:
        raise _no_redis()
    if call.site.streams >= STREAMS_MAX:
        raise Refusal(503, "too many open pages", "close some", Retry_After="10")
    return StreamingResponse(_told(call.site, call.site.live), media_type="text/event-stream")


def running(call: ApiCall) -> Response:
    """What a running trajectory has done so far, from one message on."""
    if call.site.transcripts is None:
        raise _no_redis()
    start = call.number("from", 0, most=NUMBER_MAX)
    return call.json(call.site.transcripts.after(call.path["id"], start))


def running_message(call: ApiCall) -> Response:
    """One message of a running trajectory, whole."""
    if call.site.transcripts is None:
        raise _no_redis()
    place = number(call, "number")
    if place > NUMBER_MAX:
        raise nothing()
    return call.json(call.site.transcripts.whole(call.path["id"], place))


def dead(call: ApiCall) -> Response:
    """Dead letters that match, newest first."""
    selection = letter_filter(call.query.get("q", ""))
    count, newest = 0, deque[Letter](maxlen=LETTERS_MAX)
    for each in itertools.islice(DeadLetters(_ledger(call)).find(selection), READ_MAX):
        newest.appendleft(each)
        count += 1
    return call.json({"letters": [_summary(each) for each in newest], "count": count})


def letter(call: ApiCall) -> Response:
    """One dead letter, with its log."""
    try:
        found = DeadLetters(_ledger(call)).get(call.path["id"])
    except ConfigurationError:
        raise nothing() from None
    texts = {name: present.text_of(found.fields.get(name, "")) for name in _LONG}
    return call.json({**_summary(found), **texts})


def _no_redis() -> Refusal:
    return Refusal(404, "Redis is not among the sources", "start without --no-redis")


def _ledger(call: ApiCall) -> Ledger:
    if call.site.ledger is None:
        raise _no_redis()
    return call.site.ledger


def _summary(found: Letter) -> dict[str, Any]:
    short = {k: present.label(v) for k, v in found.fields.items() if k not in _LONG}
    reason = present.label(found.fields.get("reason", ""))
    return {**short, "id": found.id, "age_s": found.age_s, "reason": reason}


async def _told(site: ViewSite, live: Live) -> AsyncIterator[bytes]:
    """The events as text, with a comment now and then, so that a dead link is found."""
    waiting: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    behind = asyncio.Event()

    def put(said: tuple[str, Any]) -> None:
        if waiting.qsize() < _EVENTS_MAX:
            waiting.put_nowait(said)
        else:
            behind.set()  # he would miss this one; nothing more is kept for him

    def tell(kind: str, data: Any) -> None:
        loop.call_soon_threadsafe(put, (kind, data))

    if site.streams >= STREAMS_MAX:  # many came at the same moment
        yield f"retry: {5 * RETRY_MS}\n\n".encode()
        return
    stopping = asyncio.create_task(site.stopping.wait())
    site.streams += 1
    try:
        with live.subscribe(tell):
            yield f"retry: {RETRY_MS}\n\n".encode()
            for number in itertools.count(1):
                said = await _next(waiting, stopping)
                if stopping.done() or behind.is_set():
                    return
                yield b": still here\n\n" if said is None else _event(number, *said)
    finally:
        site.streams -= 1
        stopping.cancel()


async def _next(
    waiting: asyncio.Queue[tuple[str, Any]], stopping: asyncio.Task[Any]
) -> tuple[str, Any] | None:
    """The next event; None if none came for a while, or the server ends."""
    getting = asyncio.create_task(waiting.get())
    try:
        await asyncio.wait(
            (getting, stopping), timeout=COMMENT_S, return_when=asyncio.FIRST_COMPLETED
        )
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


def _event(number: int, kind: str, data: Any) -> bytes:
    encoded = data if isinstance(data, bytes) else to_json(data)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, kind.encode(), encoded)


ROUTES = (
    Route("GET", "/api/overview", overview, asks_redis=True),
    Route("GET", "/api/events", events, needs_slot=False),
    Route("GET", "/api/t/{id}/live", running, parameters=("from",), asks_redis=True),
    Route("GET", "/api/t/{id}/live/{number}", running_message, asks_redis=True),
    Route("GET", "/api/dead", dead, parameters=("q",), asks_redis=True),
    Route("GET", "/api/dead/{id}", letter, asks_redis=True),
)
