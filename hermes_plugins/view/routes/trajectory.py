"""One trajectory: its parts as they are shown, and the record as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response, StreamingResponse

from hermes_plugins.view import present
from hermes_plugins.view.answers import Refusal, to_json
from hermes_plugins.view.app import ApiCall, Route, nothing
from hermes_plugins.view.index.index import DEFAULT_SORT
from hermes_plugins.view.present.conversation import all_messages
from hermes_plugins.view.present.texts import WHOLE_BYTES
from hermes_plugins.view.present.tokens import ids_of, sequence
from hermes_plugins.view.routes.lists import upto_of
from hermes_plugins.view.site import ViewSite

SAVED_AT_ONCE = 4
"""Records that are being saved: each is in memory until its reader has all of it."""
_NUMBER_MAX = 1 << 31
_WHOLE_PAGE_BYTES = 1 << 20
"""Of the texts in one page of messages that are not cut."""


def trajectory(call: ApiCall) -> Response:
    """The head of a trajectory, and its first messages."""
    name = call.path["id"]
    row = call.site.index.row(name)
    if row is None:
        raise nothing()
    raw = record(call)
    said = findings(call, raw)
    return call.json(
        {
            "row": row,
            **present.page(raw, said),
            "review": review(call),
            "neighbours": _neighbours(call, name),
            **_messages(raw, 0, said),
        }
    )


def messages(call: ApiCall) -> Response:
    """The messages from one number on."""
    raw = record(call)
    start = call.number("from", 0, most=_NUMBER_MAX)
    whole = call.query.get("whole") == "1"
    return call.json(_messages(raw, start, findings(call, raw), whole))


def message(call: ApiCall) -> Response:
    """One message, whole."""
    raw = record(call)
    found = present.message(raw, number(call, "number"))
    if found is None:
        raise nothing()
    return call.json(present.with_passages([found], findings(call, raw))[0])


def patch(call: ApiCall) -> Response:
    """The patch, by file."""
    return call.json(present.patch(record(call)))


def verifier(call: ApiCall) -> Response:
    """What the verifier says."""
    return call.json(present.verifier(record(call)))


def tokens(call: ApiCall) -> Response:
    """A sequence as octets."""
    octets = present.tokens(record(call), number(call, "number"))
    if octets is None:
        raise nothing()
    headers = {"X-HQ-Tokens": str(len(octets) // 9)}
    return Response(octets, headers=headers, media_type="application/octet-stream")


def token_turns(call: ApiCall) -> Response:
    """Which tokens of a sequence which turn sampled."""
    raw, k = record(call), number(call, "number")
    if sequence(raw, k) is None:
        raise nothing()
    return call.json({"turns": present.sequence_turns(raw, k)})


def token_text(call: ApiCall) -> Response:
    """A sequence as text, in pieces of one or more ids."""
    if call.site.tokenizer is None:
        raise Refusal(404, "there is no tokenizer", "start `hermes-queue view` with --tokenizer")
    k = number(call, "number")
    given = sequence(record(call), k)
    if given is None:
        raise nothing()
    return call.json({"pieces": call.site.tokenizer.pieces(ids_of(given.get("ids")))})


def as_file(call: ApiCall) -> Response:
    """The record as JSON, to be saved: never to be looked at in a browser's window."""
    if call.site.saving >= SAVED_AT_ONCE:
        raise Refusal(503, "too many records are being saved", "try again", Retry_After="5")
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in call.path["id"])[-80:]
    headers = {"Content-Disposition": f'attachment; filename="{name}.json"'}
    parts = _saved(call.site, record(call))
    return StreamingResponse(parts, headers=headers, media_type="application/json")


def record(call: ApiCall) -> Mapping[str, Any]:
    """The record of a request; as many at a time as the memory is meant for."""
    with call.site.decoding:
        found = call.site.index.read(call.path["id"])
    if found is None:
        raise nothing()
    return found


def number(call: ApiCall, name: str) -> int:
    """A number in the path; raises Refusal: nothing has it."""
    text = call.path[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise nothing()
    return int(text)


def _neighbours(call: ApiCall, name: str) -> dict[str, Any] | None:
    if "q" not in call.query:
        return None
    sort = call.query.get("sort") or DEFAULT_SORT
    return call.site.index.neighbours(name, call.query["q"], sort=sort, upto=upto_of(call))


def findings(call: ApiCall, raw: Mapping[str, Any]) -> list[present.ShownFinding]:
    """What its record and judges' files say of the trajectory of a request."""
    files = call.site.findings
    return present.shown_findings(raw, files.of(call.path["id"]) if files else ())


def review(call: ApiCall) -> dict[str, Any] | None:
    """The label of the trajectory of a request, and by whom."""
    found = call.site.show_reviews().get(call.path["id"])
    if found is None or found.label is None:
        return None
    return present.shown_review(found)


def _messages(
    raw: Mapping[str, Any],
    start: int,
    said: Sequence[present.ShownFinding],
    whole: bool = False,
) -> dict[str, Any]:
    bounds = {"cut_bytes": WHOLE_BYTES, "total_bytes": _WHOLE_PAGE_BYTES} if whole else {}
    found = present.with_passages(present.messages(raw, start, **bounds), said)
    behind = found[-1]["n"] + 1 if found else start
    return {"messages": found, "next": behind if behind < len(all_messages(raw)) else None}


async def _saved(site: ViewSite, raw: Mapping[str, Any]) -> AsyncIterator[bytes]:
    site.saving += 1
    try:
        async for part in iterate_in_threadpool(_members(raw)):
            yield part
    finally:
        site.saving -= 1


def _members(raw: Mapping[str, Any]) -> Iterator[bytes]:
    """The record as JSON, a part at a time: all of it at once would be in memory twice more."""
    yield b"{"
    for place, (name, value) in enumerate(raw.items()):
        yield b"," * (place > 0) + to_json(str(name)) + b":"
        if isinstance(value, list | tuple):
            yield b"["
            for at, each in enumerate(value):
                yield b"," * (at > 0) + to_json(each)
            yield b"]"
        else:
            yield to_json(value)
    yield b"}"


_T = "/api/t/{id}"
ROUTES = (
    Route("GET", _T, trajectory, parameters=("q", "sort", "upto")),
    Route("GET", f"{_T}/messages", messages, parameters=("from", "whole")),
    Route("GET", _T + "/messages/{number}", message),
    Route("GET", f"{_T}/patch", patch),
    Route("GET", f"{_T}/verifier", verifier),
    Route("GET", f"{_T}/record", as_file),
    Route("GET", _T + "/tokens/{number}", tokens),
    Route("GET", _T + "/tokens/{number}/turns", token_turns),
    Route("GET", _T + "/tokens/{number}/text", token_text),
)
