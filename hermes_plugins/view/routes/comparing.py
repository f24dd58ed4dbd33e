"""The samples of a group side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.app import ApiCall, Route, nothing
from hermes_plugins.view.compare import compare, patch_against
from hermes_plugins.view.compare.samples import SAMPLES_MOST
from hermes_queue.wire.arrays import PackedArray

COMPARED_BYTES = 64 << 20
"""Of the records together, as they are stored: all of them are in memory at once."""
COMPARED_MEMORY_BYTES = 512 << 20
"""And as they are there: what a program printed a million times is stored in a few bytes."""
_OBJECT_BYTES = 64


def compared(call: ApiCall) -> Response:
    """The samples of a group, aligned to the best one or to `reference`, a trajectory."""
    rows = _rows(call)
    wanted = call.query.get("reference")
    ids = [row["id"] for row in rows]
    if wanted is not None and wanted not in ids:
        raise Refusal(400, "reference is no sample of this group")
    records = _records(call, rows)
    return call.json(compare(records, None if wanted is None else ids.index(wanted)))


def patches(call: ApiCall) -> Response:
    """The patch of `other`, line by line against that of `reference`."""
    rows = {row["id"]: row for row in _rows(call)}
    chosen = [rows.get(call.query.get(name, "")) for name in ("reference", "other")]
    if None in chosen:
        raise Refusal(400, "reference and other name samples of this group")
    ours, theirs = _records(call, [row for row in chosen if row])
    return call.json(patch_against(ours, theirs))


def _rows(call: ApiCall) -> list[dict[str, Any]]:
    """The samples that can be read, in the order of columns."""
    group = call.site.index.group(call.path["id"])
    if group is None:
        raise nothing()
    rows: list[dict[str, Any]] = group["rows"]
    return [row for row in rows if row["status"] != "damaged"][:SAMPLES_MOST]


def _records(call: ApiCall, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    too_large = Refusal(422, "the records of this group are too large to be compared")
    if sum(row["bytes"] or 0 for row in rows) > COMPARED_BYTES:
        raise too_large
    found: list[Mapping[str, Any]] = []
    room = COMPARED_MEMORY_BYTES
    for row in rows:
        with call.site.decoding:
            raw = call.site.index.read(row["id"])
        if raw is None:
            raise nothing()
        room -= memory_bytes(raw)
        if room < 0:
            raise too_large
        found.append(raw)
    return found


def memory_bytes(value: object) -> int:
    """About how much memory a record takes."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        total += _OBJECT_BYTES
        if isinstance(each, Mapping):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, PackedArray):
            total += 4 * len(each)
    return total


ROUTES = (
    Route("GET", "/api/groups/{id}/compare", compared, parameters=("reference",)),
    Route("GET", "/api/groups/{id}/patches", patches, parameters=("reference", "other")),
)
