"""The body of a record in Redis: msgpack with packed arrays, zstd level 1.

Token ids travel as little-endian int32, logprobs as float32, masks as uint8: on a
100 KB trajectory that is a third of the JSON, and exact, because logprobs are rounded
to float32 once, at capture. `CODEC` stands beside each body, so that a reader knows
what it holds before unpacking.
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
"""A body that claims to unpack to more is refused unread."""

_INT32, _FLOAT32, _UINT8 = 1, 2, 3
_TYPECODES = {_INT32: "i", _FLOAT32: "f", _UINT8: "B"}
_TURN_ARRAYS = {"prompt_ids": _INT32, "completion_ids": _INT32, "logprobs": _FLOAT32}
_SEQUENCE_ARRAYS = {"ids": _INT32, "loss_mask": _UINT8, "logprobs": _FLOAT32}


def encode_record(record: ScoredTrajectory) -> bytes:
    """Pack one record.

    Raises:
        OverflowError: a token id does not fit int32, or a mask is not 0..255.
        ValueError: it is so large that no reader would unpack it.
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
    """Unpack one record; the inverse of `encode_record`, bit for bit.

    Raises:
        SchemaTooNew: a newer version wrote it.
        PayloadTooLarge: it claims to unpack to more than `MAX_DECODED_BYTES`.
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
    _check_schema(data, "record")
    return ScoredTrajectory.model_validate(data)


def encode_job(job: TrajectoryJob) -> bytes:
    """Pack one job as compact JSON; defaults are left out."""
    data = job.model_dump(mode="json", exclude_defaults=True)
    data["schema_version"] = job.schema_version
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def decode_job(data: bytes | str, trajectory_id: str | None = None) -> TrajectoryJob:
    """Unpack one job; under another `trajectory_id` of its group it is that sample.

    A refill shares the stored job of the member that it replaces.

    Raises:
        SchemaTooNew: a newer producer wrote it.
        ValueError: it is no job; pydantic's error names the field.
    """
    try:
        parsed = json.loads(data)
    except RecursionError as error:
        raise ValueError("a job is not nested so deep") from error
    if not isinstance(parsed, dict):
        raise ValueError("a job is a JSON object")
    _check_schema(parsed, "job")
    if trajectory_id is not None:
        parsed["trajectory_id"] = trajectory_id
        parsed["sample_index"] = int(sample_of(trajectory_id))
    return TrajectoryJob.model_validate(parsed)


def encode_item(item: Mapping[str, Any]) -> bytes:
    """A dataset row as canonical JSON: equal rows give equal bytes, hence equal hashes."""
    text = json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def item_sha256(item: Mapping[str, Any]) -> str:
    """The hash by which a row is known, whether it is stored under it or travels inline."""
    return hashlib.sha256(encode_item(item)).hexdigest()


def compress_item(data: bytes) -> bytes:
    """What is stored at `item:{sha256}`."""
    return zstandard.ZstdCompressor(level=3).compress(data)


def decompress_item(
    body: bytes, *, max_bytes: int = MAX_DECODED_BYTES, sha256: str | None = None
) -> dict[str, Any]:
    """The row stored by `compress_item`.

    Args:
        body: what is stored.
        max_bytes: of the row; one that claims to unpack to more is refused unread.
        sha256: of the row, if it has to be checked.

    Raises:
        ValueError: the bytes are not an item, not this one, or too many.
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


def _check_schema(data: Mapping[str, Any], what: str) -> None:
    version = data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{what} has schema_version {version}, this hermes-queue reads up to "
            f"{SCHEMA_VERSION}: upgrade hermes-queue here"
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
