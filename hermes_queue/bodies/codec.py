"""The encoding of a record in Redis: msgpack with packed arrays, zstd level 1.

Token ids are little-endian int32, logprobs float32, masks uint8. For a trajectory of 100 KB this
is a third of the size of JSON, and exact, because logprobs are rounded to float32 once, at
capture. `CODEC` stands beside each body, so that readers know the encoding before they unpack
it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping
from typing import Any

import msgpack
import zstandard

from hermes_queue.errors import PayloadTooLarge, SchemaTooNew
from hermes_queue.models import SCHEMA_VERSION, ScoredTrajectory, TrajectoryJob
from hermes_queue.wire.ids import sample_of

CODEC = "msgpack+zstd/1"
MAX_DECODED_BYTES = 512 << 20
"""Largest unpacked size; a body that declares more is refused unread."""

_INT32, _FLOAT32, _UINT8 = 1, 2, 3
_TYPECODES = {_INT32: "i", _FLOAT32: "f", _UINT8: "B"}
_TURN_ARRAYS = {"prompt_ids": _INT32, "completion_ids": _INT32, "logprobs": _FLOAT32}
_SEQUENCE_ARRAYS = {"ids": _INT32, "loss_mask": _UINT8, "logprobs": _FLOAT32}


def encode_record(record: ScoredTrajectory) -> bytes:
    """Encode one record.

    Raises:
        OverflowError: a token id does not fit int32, or a mask value is not 0..255.
        ValueError: the record is larger than readers accept.
    """
    data = record.model_dump(mode="python", exclude_defaults=True)
    data["schema_version"] = record.schema_version
    for turn in data.get("turns", ()):
        _pack(turn, _TURN_ARRAYS)
    for sequence in data.get("sequences") or ():
        _pack(sequence, _SEQUENCE_ARRAYS)
    packed: bytes = msgpack.packb(data, use_bin_type=True)
    if len(packed) > MAX_DECODED_BYTES:
        raise ValueError(f"{len(packed)} bytes unpacked, readers take {MAX_DECODED_BYTES}")
    return zstandard.ZstdCompressor(level=1).compress(packed)


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
        raw = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a record body: {error}") from error
    data = msgpack.unpackb(raw, ext_hook=_unpack, use_list=True, strict_map_key=False)
    if not isinstance(data, dict):
        raise ValueError("not a record body: no map")
    refuse_newer("record", data.get("schema_version"))
    return ScoredTrajectory.model_validate(data)


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
    refuse_newer("job", parsed.get("schema_version"))
    if trajectory_id is not None:
        parsed["trajectory_id"] = trajectory_id
        parsed["sample_index"] = int(sample_of(trajectory_id))
    return TrajectoryJob.model_validate(parsed)


def encode_item(item: Mapping[str, Any]) -> bytes:
    """A dataset row as canonical JSON: equal rows give equal bytes, hence equal hashes."""
    text = json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def item_sha256(item: Mapping[str, Any]) -> str:
    """SHA-256 of a row's canonical JSON, whether it is stored or travels inline."""
    return hashlib.sha256(encode_item(item)).hexdigest()


def compress_item(data: bytes) -> bytes:
    """The bytes stored at `item:{sha256}`."""
    return zstandard.ZstdCompressor(level=3).compress(data)


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


def refuse_newer(what: str, version: object, most: int = SCHEMA_VERSION) -> None:
    """Refuse what only a newer version can read.

    Raises:
        SchemaTooNew: the version is above `most`.
    """
    if isinstance(version, int) and version > most:
        raise SchemaTooNew(
            f"{what} has schema_version {version}, this hermes-queue reads up to {most}: "
            "upgrade hermes-queue here"
        )


def _pack(part: dict[str, Any], fields: Mapping[str, int]) -> None:
    for name, code in fields.items():
        values = part.get(name)
        if values is not None:
            packed = array(_TYPECODES[code], values)
            if sys.byteorder == "big":
                packed.byteswap()
            part[name] = msgpack.ExtType(code, packed.tobytes())


def _unpack(code: int, data: bytes) -> Any:
    if code not in _TYPECODES:
        return msgpack.ExtType(code, data)
    values = array(_TYPECODES[code])
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
