"""The encoding of a record in Redis: msgpack with packed arrays, zstd level 1.

Token ids are little-endian int32, logprobs float32, masks uint8. For a trajectory of 100 KB this
is a third of the size of JSON, and exact, because logprobs are rounded to float32 once, at
capture. `CODEC` stands beside each body, so that readers know the encoding before they unpack
it.

A decoded array has been checked for its type, its place and a whole number of elements, but its
elements have not been looked at: `hermes_queue.agent.tokens.invariants` does that on demand, and
each sink checks what its trainer needs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import zstandard
from pydantic_core import to_json

from hermes_queue.errors import PayloadTooLarge, SchemaTooNew
from hermes_queue.models import (
    RECORD_VERSION,
    SCHEMA_VERSION,
    ScoredTrajectory,
    TrajectoryJob,
    Wire,
)
from hermes_queue.wire.arrays import PackedArray, TypeCode, packed_bytes
from hermes_queue.wire.ids import sample_of

CODEC = "msgpack+zstd/1"
MAX_DECODED_BYTES = 512 << 20
"""Largest unpacked size; a body that declares more is refused unread."""

_INT32, _FLOAT32, _UINT8 = 1, 2, 3
_TYPECODES: Mapping[int, TypeCode] = {_INT32: "i", _FLOAT32: "f", _UINT8: "B"}
TURN_ARRAYS = {"prompt_ids": _INT32, "completion_ids": _INT32, "logprobs": _FLOAT32}
_SEQUENCE_ARRAYS = {"ids": _INT32, "loss_mask": _UINT8, "logprobs": _FLOAT32}
_IN_SEQUENCES = set(_SEQUENCE_ARRAYS)
_ARRAYS: dict[str, Any] = {"turns": {"__all__": set(TURN_ARRAYS)}, "sequences": True}

_LEVELS_ABOVE = 6
"""At least the lists and objects around the free fields of a record, in a group, too."""

_NEAR_BYTES = 1 << 19
"""As far back as level 1 looks for what it has seen before."""
_FAR_LOG = 22
"""Of the bytes that it looks back in larger records. Each prompt repeats the one before it, which
for one of a million tokens is that far away."""

_contexts = threading.local()
"""zstd's contexts, one of each kind per thread: they take long to make, and serve one call at a
time."""


def encode_record(record: ScoredTrajectory) -> bytes:
    """Encode one record.

    Raises:
        OverflowError: a token id does not fit int32, or a mask value is not 0..255.
        ValueError: the record is larger than readers accept, or JSON cannot hold it.
    """
    _refuse_beyond_json(record)
    data = record.model_dump(mode="python", exclude_defaults=True, exclude=_ARRAYS)
    data["schema_version"] = record.schema_version
    for turn, dumped in zip(record.turns, data.get("turns", ()), strict=True):
        dumped.update(packed_arrays(turn, TURN_ARRAYS))
    if record.sequences is not None:
        data["sequences"] = [
            each.model_dump(exclude_defaults=True, exclude=_IN_SEQUENCES)
            | packed_arrays(each, _SEQUENCE_ARRAYS)
            for each in record.sequences
        ]
    packed: bytes = msgpack.packb(data, use_bin_type=True)
    if len(packed) > MAX_DECODED_BYTES:
        raise ValueError(f"{len(packed)} bytes unpacked, readers take {MAX_DECODED_BYTES}")
    return _compressor(len(packed)).compress(packed)


def decode_record(body: bytes) -> ScoredTrajectory:
    """Decode one record; the exact inverse of `encode_record`.

    Raises:
        SchemaTooNew: a newer version wrote it.
        PayloadTooLarge: it declares an unpacked size above `MAX_DECODED_BYTES`.
        ValueError: the bytes are not a record.
    """
    try:
        if zstandard.frame_content_size(body) > MAX_DECODED_BYTES:
            raise PayloadTooLarge(f"a body unpacks to more than {MAX_DECODED_BYTES} bytes")
        raw = decompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a record body: {error}") from error
    arrays: list[PackedArray[Any]] = []

    def unpack(code: int, content: bytes) -> PackedArray[Any]:
        arrays.append(unpacked_array(code, content))
        return arrays[-1]

    try:
        data = msgpack.unpackb(raw, ext_hook=unpack, strict_map_key=False)
    except TypeError as error:  # a list or a map as the key of a map
        raise ValueError(f"not a record body: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("not a record body: no map")
    refuse_newer("record", data.get("schema_version"), RECORD_VERSION)
    record = ScoredTrajectory.model_validate(data)
    # Fields of any type would take an array, which those who read them do not expect.
    placed = set(map(id, _arrays_of(record)))
    if any(id(each) not in placed for each in arrays):
        raise ValueError("not a record body: an array outside the fields for tokens")
    return record


def _refuse_beyond_json(record: ScoredTrajectory) -> None:
    """Check the fields that may hold anything, which envs, agents and tools fill.

    msgpack has values that JSON does not (bytes, times, any nesting). One such record would end
    every consumer that writes JSON lines, each time it starts. Readers rely on this check: it
    would take a tenth of the time of decoding.

    Raises:
        ValueError: a value has another type, or is nested too deep: about 250 levels.
    """
    attempts = (event for attempt in record.attempts for event in attempt.events)
    free = [record.report, *record.events, *record.tools, *attempts]
    if not all(isinstance(name, str) for each in free for name in each):
        raise ValueError("a report, event or tool schema has a key that is not text")
    free += [record.agent.sampling, record.agent.params]
    free += [turn.sampling for turn in record.turns if turn.sampling]
    nested: list[Any] = free
    for _ in range(_LEVELS_ABOVE):
        nested = [nested]
    try:
        to_json(nested)
    except ValueError as error:
        raise ValueError(f"JSON cannot hold a report, event or parameter: {error}") from error


def encode_job(job: TrajectoryJob, *, of_any_sample: bool = False) -> bytes:
    """Encode one job as compact JSON; defaults are left out.

    `of_any_sample`: also what tells the samples of its group apart. `decode_job` then needs a
    `trajectory_id`.
    """
    own = {"trajectory_id", "sample_index"} if of_any_sample else None
    data = job.model_dump(mode="json", exclude_defaults=True, exclude=own)
    data["schema_version"] = job.schema_version
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def decode_job(data: bytes | str, trajectory_id: str | None = None) -> TrajectoryJob:
    """Decode one job; with `trajectory_id`, another sample of the same group.

    A refill shares the stored job of the member that it replaces.

    Raises:
        SchemaTooNew: a newer producer wrote it.
        ValueError: the data is not a job; pydantic's error names the field.
    """
    try:
        parsed = json.loads(data)
    except RecursionError as error:
        raise ValueError("not a job: nested too deep") from error
    if not isinstance(parsed, dict):
        raise ValueError("not a job: no JSON object")
    refuse_newer("job", parsed.get("schema_version"), SCHEMA_VERSION)
    if trajectory_id is not None:
        parsed["trajectory_id"] = trajectory_id
        parsed["sample_index"] = int(sample_of(trajectory_id))
    return TrajectoryJob.model_validate(parsed)


def encode_item(item: Mapping[str, Any]) -> bytes:
    """A dataset row as canonical JSON: equal rows give equal bytes, hence equal hashes.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
    """
    try:
        text = json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return text.encode()


def item_sha256(item: Mapping[str, Any]) -> str:
    """SHA-256 of a row's canonical JSON, whether it is stored or travels inline."""
    return hashlib.sha256(encode_item(item)).hexdigest()


def compress_item(data: bytes) -> bytes:
    """The bytes stored at `item:{sha256}`."""
    return zstandard.ZstdCompressor(level=3).compress(data)


def packed_sha256(body: bytes) -> str:
    """`item_sha256` of a row that this process has compressed."""
    return hashlib.sha256(decompressor().decompress(body)).hexdigest()


def decompress_item(
    body: bytes, *, max_bytes: int = MAX_DECODED_BYTES, sha256: str | None = None
) -> dict[str, Any]:
    """The row compressed by `compress_item`.

    Args:
        body: the stored bytes.
        max_bytes: largest size of the row; a body that declares more is refused unread.
        sha256: expected hash of the row; None skips the check.

    Raises:
        ValueError: the bytes are not a row, have another hash, or are too many.
    """
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= max_bytes:
            claim = f"unpacks to {size} bytes" if size >= 0 else "does not say its size"
            raise ValueError(f"not an item: it {claim}, at most {max_bytes} are read")
        data = zstandard.ZstdDecompressor().decompress(body)
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError("not the item: it has another hash")
        item = json.loads(data)
    except (zstandard.ZstdError, RecursionError) as error:
        raise ValueError(f"not an item: {error}") from error
    if not isinstance(item, dict):
        raise ValueError("not an item: no JSON object")
    return item


def refuse_newer(what: str, version: object, most: int = RECORD_VERSION) -> None:
    """Refuse what only a newer version can read.

    Raises:
        SchemaTooNew: the version is above `most`.
    """
    if isinstance(version, int) and version > most:
        raise SchemaTooNew(
            f"{what} has schema_version {version}, this hermes-queue reads up to {most}: "
            "upgrade hermes-queue here"
        )


def _compressor(size: int) -> zstandard.ZstdCompressor:
    name = "far" if size > _NEAR_BYTES else "near"
    found: zstandard.ZstdCompressor | None = getattr(_contexts, name, None)
    if found is None:
        found = zstandard.ZstdCompressor(level=1) if name == "near" else _far_compressor()
        setattr(_contexts, name, found)
    return found


def _far_compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(
            1, window_log=_FAR_LOG, enable_ldm=True
        )
    )


def decompressor() -> zstandard.ZstdDecompressor:
    """One that this thread keeps."""
    found: zstandard.ZstdDecompressor | None = getattr(_contexts, "decompressor", None)
    if found is None:
        found = _contexts.decompressor = zstandard.ZstdDecompressor()
    return found


def packed_arrays(part: Wire, fields: Mapping[str, int]) -> dict[str, msgpack.ExtType]:
    """The arrays of a turn or sequence, as msgpack takes them."""
    return {
        name: msgpack.ExtType(
            code, _little_endian(_TYPECODES[code], packed_bytes(_TYPECODES[code], values))
        )
        for name, code in fields.items()
        if (values := getattr(part, name)) is not None
    }


def unpacked_array(code: int, content: bytes) -> PackedArray[Any]:
    """The array of a msgpack extension. Raises ValueError: it holds no array of ours."""
    if code not in _TYPECODES:
        raise ValueError(f"not a record body: extension type {code}")
    typecode = _TYPECODES[code]
    return PackedArray(typecode, _little_endian(typecode, content))


def _arrays_of(record: ScoredTrajectory) -> Iterator[object]:
    for turn in record.turns:
        yield from (turn.prompt_ids, turn.completion_ids, turn.logprobs)
    for sequence in record.sequences or ():
        yield from (sequence.ids, sequence.loss_mask, sequence.logprobs)


def _little_endian(typecode: TypeCode, content: bytes) -> bytes:
    """Numbers of this machine's byte order in little-endian order, or the other way round."""
    if sys.byteorder == "little":
        return content
    swapped = array(typecode, content)
    swapped.byteswap()
    return swapped.tobytes()
