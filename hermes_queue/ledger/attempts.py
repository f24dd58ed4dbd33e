"""Failed attempts as the ledger keeps them, for the record of the attempt that counts.

A line per attempt: its facts as JSON and, after a tab, its transcript as base64 of zstd. So
`requeue.lua` can limit their size without unpacking them.
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
"""Transcripts that claim to unpack to more are not unpacked."""


class _Transcript(Wire):
    messages: tuple[Message, ...] = ()
    events: tuple[dict[str, Any], ...] = ()


def packed(record: AttemptRecord) -> tuple[str, str]:
    """Facts and transcript; the transcript is empty if there is none."""
    parts = set(_Transcript.model_fields)
    facts = record.model_dump_json(exclude_defaults=True, exclude=parts)
    if not record.messages and not record.events:
        return facts, ""
    transcript = record.model_dump_json(exclude_defaults=True, include=parts)
    body = zstandard.ZstdCompressor(level=3).compress(transcript.encode())
    return facts, base64.b64encode(body).decode()


def unpacked(lines: Iterable[bytes], *, transcripts: bool = True) -> list[AttemptRecord]:
    """The attempts in these lines; lines of another version are skipped.

    It is cheap without the transcripts, which may have megabytes.
    """
    found = []
    for line in lines:
        facts, _, transcript = line.partition(b"\t")
        try:
            found.append(AttemptRecord.model_validate_json(facts))
            if transcripts and transcript:
                found[-1] = _with_transcript(found[-1], transcript)
        except ValueError as error:
            extra = {"action": "attempt_unreadable"}
            logger.warning("cannot read the record of a failed attempt: %s", error, extra=extra)
    return found


def _with_transcript(record: AttemptRecord, transcript: bytes) -> AttemptRecord:
    """Raises ValueError: the transcript is invalid or too large."""
    try:
        body = base64.b64decode(transcript, validate=True)
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= MAX_EVIDENCE_BYTES:
            raise ValueError(f"its transcript unpacks to {size} bytes")
        content = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(f"its transcript is invalid: {error}") from error
    found = _Transcript.model_validate_json(content)
    return record.model_copy(update={"messages": found.messages, "events": found.events})
