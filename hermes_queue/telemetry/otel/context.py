"""Which trace a trajectory belongs to, and whether it is exported.

Both follow from the trajectory's id and the context that its job carries, so that all processes
agree without asking each other: the producer, each worker that makes an attempt, and the sink.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hermes_queue.models import ScoredTrajectory

_NAMESPACE = b"hermes-queue trace 1\0"


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The place of one span."""

    trace_id: bytes
    span_id: bytes
    sampled: bool = True
    parent_id: bytes = b""
    """The span in another process of which it is a child."""

    def header(self) -> str:
        """The context as a `traceparent`."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{int(self.sampled):02x}"


def parsed(traceparent: str | None) -> SpanContext | None:
    """The context of a header that `wire.provenance` has checked; None if there is no header."""
    if traceparent is None:
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(bytes.fromhex(trace_id), bytes.fromhex(span_id), flags == "01")


def of_trajectory(trajectory_id: str, traceparent: str | None, ratio: float) -> SpanContext:
    """The root span of a trajectory.

    With a parent it belongs to the parent's trace and is exported if that is. Without one it is a
    trace of its own, and `ratio` of all trace ids are exported.
    """
    digest = _digest(trajectory_id)
    parent = parsed(traceparent)
    if parent is not None:
        return SpanContext(parent.trace_id, digest[16:24], parent.sampled, parent.span_id)
    return SpanContext(digest[:16], digest[16:24], is_chosen(digest[:16], ratio))


def of_record(record: ScoredTrajectory, ratio: float) -> SpanContext:
    """The root span of a record's trajectory."""
    return of_trajectory(record.trajectory_id, record.provenance.job.traceparent, ratio)


def of_attempt(trajectory_id: str, epoch: int) -> bytes:
    """Id of the span of one attempt; `epoch` tells attempts of a trajectory apart."""
    return _digest(f"{trajectory_id}\0{epoch}")[:8]


def is_chosen(trace_id: bytes, ratio: float) -> bool:
    """Whether a trace without a parent is exported, as the SDKs' `TraceIdRatioBased` decides."""
    return int.from_bytes(trace_id[8:16], "big") < round(ratio * 2**64)


def _digest(name: str) -> bytes:
    return hashlib.sha256(_NAMESPACE + name.encode("utf-8", "backslashreplace")).digest()
