"""Which attempts of a worker are traced, and when their spans are made."""

from __future__ import annotations

import time
from functools import partial

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import ACCEPTED, PublishVerdict
from hermes_queue.models import ScoredTrajectory
from hermes_queue.telemetry.otel import context
from hermes_queue.telemetry.otel.context import SpanContext
from hermes_queue.telemetry.otel.exporter import OtelExporter
from hermes_queue.telemetry.otel.timeline import Timeline
from workers.draft import Draft
from workers.tracing.attempt import EndedAttempt, spans_of
from workers.tracing.trajectory import root_of


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
        self._exporter.spans(partial(root_of, record, place, verdict, ended_ns, shows))

    def _place(self, draft: Draft) -> SpanContext:
        job = draft.job
        return context.of_trajectory(job.trajectory_id, job.producer.traceparent, self._ratio)

    def _may_keep(self, draft: Draft) -> bool:
        """Whether it is exported if it fails; a producer that does not want a trace gets none."""
        return self._keeps_failed and draft.job.producer.traceparent is None
