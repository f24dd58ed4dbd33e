"""The origin of a job: its producer, and its W3C trace context as the header `traceparent`.

A header may come from anybody. What is not a valid one is ignored, as the standard asks.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

from pydantic import BeforeValidator, Field

from hermes_queue.wire.conversation import Wire

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?\Z")
_LONGEST = 512
_SAMPLED = 0x01


def checked_traceparent(value: object) -> str | None:
    """`value` in the form of version 00 with no flag but `sampled`, or None if it is no header."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    found = _HEADER.match(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16):
        return None
    if not int(span_id, 16):
        return None
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & _SAMPLED:02x}"


class Provenance(Wire):
    """Origin of a job: producer module, package version, and git commit if known."""

    producer: str = ""
    version: str = ""
    git: str | None = None
    traceparent: Annotated[str | None, BeforeValidator(checked_traceparent)] = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """The trace that the trajectory belongs to (docs/tracing.md). Written only if there is one:
    older workers refuse such jobs."""


def current_traceparent() -> str | None:
    """The trace context that this code runs in: of a span of OpenTelemetry, or of the process.

    The latter is the variable `TRACEPARENT`. OpenTelemetry is asked only if the program has loaded
    it.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        try:
            span = api.get_current_span().get_span_context()
            header = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
        except Exception:  # noqa: BLE001 - somebody else's code, which must not cost a job
            header = ""
        if known := checked_traceparent(header):
            return known
    return checked_traceparent(os.environ.get("TRACEPARENT"))
