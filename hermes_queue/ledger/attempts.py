"""Failed attempts as the ledger keeps them, for the record of the one that counts.

A line per attempt: its facts as JSON and, behind a tab, its transcript as base64 of zstd. So
`requeue.lua` can bound what is kept without unpacking it.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Iterable

import zstandard
from pydantic import ValidationError

from hermes_queue.models import AttemptRecord

logger = logging.getLogger(__name__)

MAX_EVIDENCE_BYTES = 16 << 20
"""What claims to unpack to more is left packed."""

_EVIDENCE = {"messages", "events"}


def packed(record: AttemptRecord) -> tuple[str, str]:
    """Facts and transcript; the latter is empty when there is none."""
    facts = record.model_dump_json(exclude_defaults=True, exclude=_EVIDENCE)
    if not record.messages and not record.events:
        return facts, ""
    transcript = record.model_dump_json(exclude_defaults=True, include=_EVIDENCE)
    body = zstandard.ZstdCompressor(level=3).compress(transcript.encode())
    return facts, base64.b64encode(body).decode()


def unpacked(lines: Iterable[bytes]) -> list[AttemptRecord]:
    """The attempts of these lines; one that another version wrote is passed over."""
    found = []
    for line in lines:
        facts, _, transcript = line.partition(b"\t")
        try:
            found.append(AttemptRecord.model_validate_json(facts))
            if transcript:
                found[-1] = _with_transcript(found[-1], transcript)
        except (ValidationError, ValueError) as error:
            logger.warning(
                "an attempt's record is unreadable: %s",
                error,
                extra={"action": "attempt_unreadable"},
            )
    return found


def _with_transcript(record: AttemptRecord, transcript: bytes) -> AttemptRecord:
    """Raises ValueError: it is none, or too large."""
    try:
        body = base64.b64decode(transcript, validate=True)
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= MAX_EVIDENCE_BYTES:
            raise ValueError(f"its transcript unpacks to {size} bytes")
        content = json.loads(zstandard.ZstdDecompressor().decompress(body))
    except (binascii.Error, zstandard.ZstdError) as error:
        raise ValueError(f"its transcript is none: {error}") from error
    return AttemptRecord.model_validate({**record.model_dump(), **content})
