"""Token ids, masks and logprobs of a record, without a look at each number as a Python object."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any, TypedDict

import msgpack

from hermes_plugins.view.present.shapes import items, mapping, whole
from hermes_queue.terminal.escapes import label
from hermes_queue.wire.arrays import PackedArray, TypeCode

TOKENS_MOST = 16 << 20
"""Of one sequence."""
SEQUENCES_MOST = 1000
TURNS_MOST = 10_000
NO_ID = -1
"""In place of what is no token id of 32 bits."""

_IS_SET = bytes([0]) + b"\1" * 255
_LITTLE = sys.byteorder == "little"


class SequenceFacts(TypedDict):
    """A training sequence in a list of all."""

    n: int
    ids: int
    trained: int
    mean_logprob: float | None
    """Of the trained tokens with a finite logprob; None if there are none."""
    min_logprob: float | None
    branch: str | None


class SequenceTurn(TypedDict):
    """The tokens that one turn sampled, as a part of a sequence."""

    turn: int | None
    """None if the record does not say which turn it was."""
    start: int
    length: int
    trained: bool
    """Whether the mask has any of them."""
    policy: str | None
    spans: list[tuple[str, int]]
    """(version, place in the turn) for each, where the weights changed within the turn."""


def sequences(raw: Mapping[Any, Any]) -> list[SequenceFacts]:
    """All training sequences of a record; [] if the server returned no token ids."""
    given = items(raw.get("sequences"))[:SEQUENCES_MOST]
    return [_facts(n, mapping(each)) for n, each in enumerate(given)]


def sequence(raw: Mapping[Any, Any], k: int) -> Mapping[Any, Any] | None:
    """Sequence `k` as it is in the record; None if it is not there."""
    given = items(raw.get("sequences"))
    return mapping(given[k]) if 0 <= k < len(given) else None


def tokens(raw: Mapping[Any, Any], k: int) -> bytes | None:
    """Sequence `k` as octets, little-endian without padding; None if it is not there.

    For N ids: N times int32 (ids), N times uint8 (1 = trained), N times float32 (logprobs). A mask
    or logprobs that are shorter than the ids are filled with 0.
    """
    each = sequence(raw, k)
    if each is None:
        return None
    ids = ids_of(each.get("ids"))
    mask = _filled(_mask(each.get("loss_mask")), len(ids))
    logprobs = _filled(_little(_packed("f", each.get("logprobs"))), 4 * len(ids))
    return _little(ids) + mask + logprobs


def sequence_turns(raw: Mapping[Any, Any], k: int) -> list[SequenceTurn]:
    """The turns in sequence `k`, in order of their tokens.

    A turn is there if the sequence has its prompt and then its completion, id by id. If the record
    has no ids by turn, the parts are the rows of trained tokens, without the turns' numbers.
    """
    each = sequence(raw, k)
    if each is None:
        return []
    ids = ids_of(each.get("ids")).tobytes()
    mask = _filled(_mask(each.get("loss_mask")), len(ids) // 4)
    turns = items(raw.get("turns"))
    given = map(whole, items(each.get("turns"))[:TURNS_MOST])
    named = dict.fromkeys(n for n in given if n is not None)
    found: list[SequenceTurn] = []
    end = 0
    for n in named or range(min(len(turns), TURNS_MOST)):
        turn = mapping(turns[n]) if 0 <= n < len(turns) else {}
        place = _place(ids, turn, end)
        if place is not None:
            start, end = place
            found.append(_turn(n, start, end, mask, turn))
    return found or _rows(mask)


def ids_of(value: object) -> PackedArray[int]:
    """Token ids, at most `TOKENS_MOST`; `NO_ID` for anything else."""
    return _packed("i", value)


def _facts(n: int, each: Mapping[Any, Any]) -> SequenceFacts:
    ids, mask = ids_of(each.get("ids")), _mask(each.get("loss_mask"))
    values = list(compress(_packed("f", each.get("logprobs")), mask[: len(ids)]))
    if not math.isfinite(sum(values)):  # one is infinite or no number: float32 cannot overflow it
        values = [value for value in values if math.isfinite(value)]
    branch = each.get("branch")
    return {
        "n": n,
        "ids": len(ids),
        "trained": mask[: len(ids)].count(1),
        "mean_logprob": sum(values) / len(values) if values else None,
        "min_logprob": min(values) if values else None,
        "branch": None if branch is None else label(branch),
    }


def _place(ids: bytes, turn: Mapping[Any, Any], end: int) -> tuple[int, int] | None:
    """Start and end of the turn's completion behind `end`, in ids; None if it is not there."""
    prompt, sampled = turn.get("prompt_ids"), turn.get("completion_ids")
    if prompt is None or not sampled:
        return None
    before, after = ids_of(prompt).tobytes(), ids_of(sampled).tobytes()
    if (
        len(before) < 4 * end
        or not ids.startswith(before)
        or not ids.startswith(after, len(before))
    ):
        return None
    return len(before) // 4, (len(before) + len(after)) // 4


def _turn(
    n: int | None, start: int, end: int, mask: bytes, turn: Mapping[Any, Any]
) -> SequenceTurn:
    version = turn.get("policy_version")
    return {
        "turn": n,
        "start": start,
        "length": end - start,
        "trained": mask.find(b"\1", start, end) >= 0,
        "policy": None if version is None else label(version),
        "spans": [
            (label(span[0]), whole(span[1]) or 0)
            for span in items(turn.get("policy_spans"))[:100]
            if isinstance(span, list | tuple) and len(span) == 2
        ],
    }


def _rows(mask: bytes) -> list[SequenceTurn]:
    found: list[SequenceTurn] = []
    start = mask.find(b"\1")
    while start >= 0 and len(found) < TURNS_MOST:
        end = mask.find(b"\0", start)
        end = len(mask) if end < 0 else end
        found.append(_turn(None, start, end, mask, {}))
        start = mask.find(b"\1", end)
    return found


def _mask(value: object) -> bytes:
    """One byte per token, 0 or 1."""
    return _packed("B", value).tobytes().translate(_IS_SET)


def _filled(data: bytes, size: int) -> bytes:
    return data[:size].ljust(size, b"\0")


def _packed(code: TypeCode, value: object) -> PackedArray[Any]:
    """The numbers of a list or of a packed array as this type."""
    if isinstance(value, msgpack.ExtType):
        size = struct.calcsize(code)
        data = value.data[: len(value.data) // size * size]
        value = PackedArray(code, _swapped(code, data))
    if isinstance(value, PackedArray) and value.typecode == code:
        return value if len(value) <= TOKENS_MOST else value[:TOKENS_MOST]
    if not isinstance(value, list | tuple | PackedArray):
        return PackedArray(code, b"")
    given = value[:TOKENS_MOST]
    try:
        return PackedArray(code, struct.pack(f"{len(given)}{code}", *given))
    except (struct.error, OverflowError, TypeError, ValueError):
        return PackedArray(code, array(code, _one_by_one(code, given)).tobytes())


def _one_by_one(code: TypeCode, values: Iterable[Any]) -> Iterable[int | float]:
    for value in values:
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        if code == "B":
            yield 1 if value else 0
        elif code == "f":
            yield _float32(value) if usable else math.nan
        else:
            fits = isinstance(value, int) and -(2**31) <= value < 2**31
            yield int(value) if usable and fits else NO_ID


def _float32(value: Any) -> float:
    """`value` as a float that float32 can hold; infinite if it is too large."""
    try:
        array("f", [value])
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _little(values: PackedArray[Any]) -> bytes:
    return _swapped(values.typecode, values.tobytes())


def _swapped(code: TypeCode, data: bytes) -> bytes:
    """Numbers of this machine's byte order in little-endian order, or the other way round."""
    if _LITTLE:
        return data
    numbers = array(code, data)
    numbers.byteswap()
    return numbers.tobytes()
