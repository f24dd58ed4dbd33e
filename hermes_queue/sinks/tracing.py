"""The span of a sink's write, with links to the trajectories in it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from hermes_queue.models import TrajectoryGroup
from hermes_queue.telemetry.otel import context
from hermes_queue.telemetry.otel.exporter import OtelExporter
from hermes_queue.telemetry.otel.producing import MOST_LINKS
from hermes_queue.telemetry.otel.spans import OWN, Link, TraceSpan


def export_write(
    exporter: OtelExporter, sink: str, groups: Sequence[TrajectoryGroup], added: int, began_ns: int
) -> None:
    """Export one write, unless no trajectory in it is traced. It never waits.

    Args:
        exporter: of this process.
        sink: its kind.
        groups: that are durable at the destination now.
        added: number of their trajectories that were new there.
        began_ns: start of the write in Unix nanoseconds.
    """
    if not exporter.settings.exports("traces"):
        return
    ratio = exporter.settings.sample
    places = [
        context.of_record(record, ratio)
        for group in groups
        for record in (*group.members, *group.extras)
    ]
    links = [Link(place.trace_id, place.span_id) for place in places if place.sampled]
    if not links:
        return
    span = TraceSpan(
        f"write {sink}",
        os.urandom(16),
        os.urandom(8),
        b"",
        began_ns,
        time.time_ns(),
        kind="consumer",
        attributes={
            f"{OWN}sink": sink,
            f"{OWN}groups": len(groups),
            f"{OWN}trajectories": len(places),
            f"{OWN}added": added,
        },
        links=links[:MOST_LINKS],
        more_links=max(0, len(links) - MOST_LINKS),
    )
    exporter.spans(lambda: [span])
