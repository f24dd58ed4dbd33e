"""The root span of a trajectory, and that of its publication, made of the record."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.ledger import PublishVerdict
from hermes_queue.models import ScoredTrajectory
from hermes_queue.telemetry.otel.context import SpanContext
from hermes_queue.telemetry.otel.spans import (
    CONVERSATION,
    ERROR_TYPE,
    OWN,
    AttributeValue,
    TraceSpan,
)

_PUBLISH = b"publish\0"
"""Mixed into the root's id for that of the publication."""


def root_of(
    record: ScoredTrajectory,
    place: SpanContext,
    verdict: PublishVerdict,
    ended_ns: int,
    shows_contents: bool,
) -> Sequence[TraceSpan]:
    """The spans of a published record. Attempts are children of the first one."""
    attributes: dict[str, AttributeValue] = {
        f"{OWN}run_id": record.run_id,
        f"{OWN}group_id": record.group_id,
        f"{OWN}trajectory_id": record.trajectory_id,
        f"{OWN}env": record.env,
        f"{OWN}instance_id": record.instance_id,
        f"{OWN}attempts": record.attempt,
        f"{OWN}status": record.status,
        f"{OWN}stop_reason": record.stop_reason,
        f"{OWN}published": verdict,
        CONVERSATION: record.trajectory_id,
    }
    if record.score is not None:
        attributes[f"{OWN}score"] = record.score
    if record.cost_usd is not None:
        attributes[f"{OWN}cost_usd"] = record.cost_usd
    failure = record.failure
    if failure is not None:
        attributes |= {ERROR_TYPE: failure.kind, f"{OWN}failure.stage": failure.stage}
    made_ns = round(record.created * 1e9)
    root = TraceSpan(
        f"trajectory {record.env.rpartition('.')[2]}",
        place.trace_id,
        place.span_id,
        place.parent_id,
        min(_began_ns(record), made_ns),
        ended_ns,
        kind="consumer",
        attributes=attributes,
        failed=failure is not None,
        message=failure.message if failure and shows_contents else "",
    )
    publication = TraceSpan(
        "publish",
        place.trace_id,
        bytes(a ^ b for a, b in zip(place.span_id, _PUBLISH, strict=True)),
        place.span_id,
        made_ns,
        ended_ns,
        attributes={f"{OWN}published": verdict},
    )
    return [root, publication]


def _began_ns(record: ScoredTrajectory) -> int:
    """Since when it has been known to wait, in Unix nanoseconds by Redis' clock."""
    known = [each.begun_at for each in record.attempts]
    known += [record.provenance.queued_at, record.provenance.begun_at]
    moments = [each for each in known if each is not None]
    return round(min(moments, default=record.created) * 1e9)
