"""Metrics and traces of a sink: the number of stored trajectories, and their age.

Any loop over `consume` can use them:

    with metered("parquet") as meter:
        async for group in consume("archive"):
            meter.stored([group], sink.write(group.members))
            await group.ack()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from hermes_queue.models import TrajectoryGroup
from hermes_queue.settings import MetricsSettings, OtelSettings
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Meter, PrometheusMeter

if TYPE_CHECKING:
    from hermes_queue.telemetry.otel.exporter import OtelExporter  # loaded only if there is one


class SinkMeter:
    """The metrics of one sink."""

    def __init__(
        self, sink: str, meter: Meter, port: int | None = None, exporter: OtelExporter | None = None
    ) -> None:
        self.port = port
        """Port on which the metrics are served; None = not served."""
        self._labels = {"sink": sink}
        self._meter = meter
        self._exporter = exporter

    def stored(
        self, groups: Sequence[TrajectoryGroup], added: int, *, began_ns: int | None = None
    ) -> None:
        """Count groups that are durable at the destination.

        Args:
            groups: as they were delivered.
            added: number of their trajectories that were new there.
            began_ns: start of the write in Unix nanoseconds.
        """
        self.traced(groups, added, began_ns=began_ns)
        self.count(len(groups), added, [m.created for group in groups for m in group.members])

    def traced(
        self, groups: Sequence[TrajectoryGroup], added: int, *, began_ns: int | None = None
    ) -> None:
        """Export the write to OpenTelemetry, if that is on. As `stored`, but counts nothing."""
        if self._exporter is not None:
            from hermes_queue.sinks.tracing import export_write

            began = time.time_ns() if began_ns is None else began_ns
            export_write(self._exporter, self._labels["sink"], groups, added, began)

    def count(self, groups: int, added: int, created: Iterable[float]) -> None:
        """`stored`, for groups no longer in memory; `created` is Unix time in seconds."""
        self._meter.add(metrics.SINK_GROUPS, self._labels, groups)
        self._meter.add(metrics.SINK_TRAJECTORIES, self._labels, added)
        now = time.time()
        for since in created:
            self._meter.observe(metrics.SINK_AGE_SECONDS, self._labels, max(0.0, now - since))


@contextmanager
def metered(sink: str, settings: MetricsSettings | None = None) -> Iterator[SinkMeter]:
    """Serve `/metrics` of this sink in the block, if `HERMES_QUEUE_METRICS_SINK_PORT` is set.

    Args:
        sink: its kind, e.g. "parquet"; a label, so no path and no run id.
        settings: port, address and bounds.

    Raises:
        ConfigurationError: the port is taken, or `prometheus_client` is missing.
    """
    section = settings or MetricsSettings()
    with ExitStack() as opened:
        exporter = _exporter(opened)
        if section.sink_port is None:
            unserved = exporter.export_meter(Meter()) if exporter else Meter()
            yield SinkMeter(sink, unserved, exporter=exporter)
            return
        from hermes_queue.telemetry.endpoint import MetricsEndpoint  # a web server

        meter = PrometheusMeter("sink", max_label_values=section.max_label_values)
        endpoint = MetricsEndpoint(
            {"/metrics": meter.exposition},
            address=section.address,
            port=section.sink_port,
            setting="HERMES_QUEUE_METRICS_SINK_PORT",
        )
        opened.enter_context(closing(endpoint))
        counted = exporter.export_meter(meter) if exporter else meter
        yield SinkMeter(sink, counted, endpoint.port, exporter)


def _exporter(opened: ExitStack) -> OtelExporter | None:
    """The exporter of this process, closed with `opened`; None if OpenTelemetry is off."""
    if OtelSettings().endpoint is None:
        return None
    from hermes_queue.telemetry.otel.exporter import open_exporter

    exporter = open_exporter("sink")
    if exporter is not None:
        opened.callback(exporter.close)
        exporter.export_logs(logging.getLogger())
    return exporter
