"""Which attempts of a worker are traced, and when their spans are made.

The root span of a trajectory, and that of its publication, are made here of its record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import ACCEPTED, PublishVerdict
from hermes_queue.models import ScoredTrajectory
from hermes_queue.telemetry.otel import context
from hermes_queue.telemetry.otel.context import SpanContext
from hermes_queue.telemetry.otel.exporter import OtelExporter
from hermes_queue.telemetry.otel.spans import (
    CONVERSATION,
    ERROR_TYPE,
    OWN,
    AttributeValue,
    TraceSpan,
)
from hermes_queue.telemetry.otel.timeline import Timeline
from workers.draft import Draft
from workers.tracing.attempt import EndedAttempt, spans_of

_PUBLISH = b"publish\0"
"""Mixed into the root's id for that of the publication."""


class Tracer:
    """Traces the attempts of one worker. Nothing in it waits or raises."""

    def __init__(self, exporter: OtelExporter) -> None:
        self._exporter = exporter
        settings = exporter.settings
        self._ratio, self._keeps_failed = settings.sample, settings.keep_failed
        self._characters = settings.content_characters if settings.content else 0

    def watch(self, draft: Draft) -> None:
        """Have the attempt note what it does, if its spans may be exported."""
        place = self._place(draft)
        if not place.sampled and not self._may_keep(draft):
            return
        timeline = Timeline(keeps_content=self._characters > 0)
        draft.clock.timeline = draft.agent.timeline = timeline
        self._exporter.running[draft.job.trajectory_id] = SpanContext(
            place.trace_id, context.of_attempt(draft.job.trajectory_id, draft.epoch)
        )

    def ended(self, draft: Draft, failure: TrajectoryFailure | None, outcome: str = "") -> None:
        """Export an attempt that has ended: measured, with a failure, or with another `outcome`.

        The first call for an attempt counts.
        """
        timeline = draft.clock.timeline
        if timeline is None:
            return
        draft.clock.timeline = None
        place = self._place(draft)
        if not place.sampled and failure is None:
            return
        ended = failure.cause if failure else "measured"
        attempt = EndedAttempt(
            draft, timeline, place, failure, outcome or ended, time.time_ns(), self._characters
        )
        self._exporter.spans(partial(spans_of, attempt))

    def left(self, draft: Draft) -> None:
        """Forget an attempt. It goes on elsewhere, unless it has ended."""
        self.ended(draft, None, "handed back")
        self._exporter.running.pop(draft.job.trajectory_id, None)

    def published(self, record: ScoredTrajectory, verdict: PublishVerdict) -> None:
        """Export the root span of a trajectory that is over. Thread-safe."""
        if verdict not in (*ACCEPTED, "surplus"):  # another record counts, or none
            return
        place = context.of_record(record, self._ratio)
        troubled = record.failure is not None or record.attempts
        if not place.sampled:
            parent = context.parsed(record.provenance.job.traceparent)
            if not (self._keeps_failed and troubled and parent is None):
                return
        ended_ns, shows = time.time_ns(), self._characters > 0
        self._exporter.spans(partial(_root_of, record, place, verdict, ended_ns, shows))

    def _place(self, draft: Draft) -> SpanContext:
        job = draft.job
        return context.of_trajectory(job.trajectory_id, job.producer.traceparent, self._ratio)

    def _may_keep(self, draft: Draft) -> bool:
        """Whether it is exported if it fails; a producer that does not want a trace gets none."""
        return self._keeps_failed and draft.job.producer.traceparent is None


def _root_of(
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
