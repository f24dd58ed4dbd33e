"""Failed attempts as the ledger keeps them, for the record of the one that counts.

A line per attempt: its facts as JSON and, behind a tab, its transcript as base64 of zstd. So
`requeue.lua` can bound what is kept without unpacking it.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from typing import Any

import zstandard

from hermes_queue.models import AttemptRecord, Message, Wire

logger = logging.getLogger(__name__)

MAX_EVIDENCE_BYTES = 16 << 20
"""What claims to unpack to more is left packed."""


class _Transcript(Wire):
    messages: tuple[Message, ...] = ()
    events: tuple[dict[str, Any], ...] = ()


def packed(record: AttemptRecord) -> tuple[str, str]:
    """Facts and transcript; the latter is empty when there is none."""
    facts = record.model_dump_json(exclude_defaults=True, exclude=set(_Transcript.model_fields))
    if not record.messages and not record.events:
        return facts, ""
    transcript = record.model_dump_json(
        exclude_defaults=True, include=set(_Transcript.model_fields)
    )
    body = zstandard.ZstdCompressor(level=3).compress(transcript.encode())
    return facts, base64.b64encode(body).decode()


def unpacked(lines: Iterable[bytes], *, transcripts: bool = True) -> list[AttemptRecord]:
    """The attempts of these lines; one that another version wrote is passed over.

    Without their transcripts, which may have megabytes, it takes no time to speak of.
    """
    found = []
    for line in lines:
        facts, _, transcript = line.partition(b"\t")
        try:
            found.append(AttemptRecord.model_validate_json(facts))
            if transcripts and transcript:
                found[-1] = _with_transcript(found[-1], transcript)
        except ValueError as error:
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
        content = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(f"its transcript is none: {error}") from error
    found = _Transcript.model_validate_json(content)
    return record.model_copy(update={"messages": found.messages, "events": found.events})
