"""The span of a producer's call that enqueues jobs, with links to the traces that it began."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from hermes_queue.models import TrajectoryJob
from hermes_queue.settings import OtelSettings
from hermes_queue.telemetry.otel import context
from hermes_queue.telemetry.otel.spans import OWN, Link, TraceSpan

if TYPE_CHECKING:
    from hermes_queue.telemetry.otel.exporter import OtelExporter  # loaded only if there is one

MOST_LINKS = 128


class Enqueueing:
    """One call. For one thread."""

    def __init__(self, exporter: OtelExporter) -> None:
        self._exporter = exporter
        self._began_ns = time.time_ns()
        self._links: list[Link] = []
        self._more_links = 0
        self._first: TrajectoryJob | None = None

    def sent(self, jobs: Iterable[TrajectoryJob]) -> None:
        """Note jobs that are new."""
        ratio = self._exporter.settings.sample
        for job in jobs:
            self._first = self._first or job
            place = context.of_trajectory(job.trajectory_id, job.producer.traceparent, ratio)
            if not place.sampled:
                continue
            if len(self._links) < MOST_LINKS:
                self._links.append(Link(place.trace_id, place.span_id))
            else:
                self._more_links += 1

    def ended(self, enqueued: int, already: int) -> None:
        """Export the span, unless nothing was new or the caller's trace is not exported."""
        if self._first is None:
            return
        parent = context.parsed(self._first.producer.traceparent)
        if parent is not None and not parent.sampled:
            return
        span = TraceSpan(
            "enqueue",
            parent.trace_id if parent else os.urandom(16),
            os.urandom(8),
            parent.span_id if parent else b"",
            self._began_ns,
            time.time_ns(),
            kind="producer",
            attributes={
                f"{OWN}run_id": self._first.run_id,
                f"{OWN}enqueued": enqueued,
                f"{OWN}already": already,
            },
            links=self._links,
            more_links=self._more_links,
        )
        self._exporter.spans(lambda: [span])


def enqueueing() -> Enqueueing | None:
    """The span of a call that begins now; None if no traces are exported.

    Raises:
        ConfigurationError: the extra `otel` is not installed.
    """
    if not OtelSettings().exports("traces"):
        return None
    exporter = _of_process(os.getpid())
    return Enqueueing(exporter) if exporter else None


@cache
def _of_process(pid: int) -> OtelExporter | None:
    """The exporter of a producer, which ends with its process."""
    from hermes_queue.telemetry.otel.exporter import open_exporter

    exporter = open_exporter("producer")
    if exporter is not None:
        atexit.register(exporter.close)
    return exporter
