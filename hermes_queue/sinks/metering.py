"""Metrics of a sink: the number of stored trajectories, and their age.

Any loop over `consume` can use them:

    with metered("parquet") as meter:
        async for group in consume("archive"):
            meter.stored([group], sink.write(group.members))
            await group.ack()
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

from hermes_queue.models import TrajectoryGroup
from hermes_queue.settings import MetricsSettings
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Meter, PrometheusMeter


class SinkMeter:
    """The metrics of one sink."""

    def __init__(self, sink: str, meter: Meter, port: int | None = None) -> None:
        self.port = port
        """Port on which the metrics are served; None = not served."""
        self._labels = {"sink": sink}
        self._meter = meter

    def stored(self, groups: Sequence[TrajectoryGroup], added: int) -> None:
        """Count groups that are durable at the destination.

        Args:
            groups: as they were delivered.
            added: number of their trajectories that were new there.
        """
        self.count(len(groups), added, [m.created for group in groups for m in group.members])

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
    if section.sink_port is None:
        yield SinkMeter(sink, Meter())
        return
    from hermes_queue.telemetry.endpoint import MetricsEndpoint  # a web server

    meter = PrometheusMeter("sink", max_label_values=section.max_label_values)
    endpoint = MetricsEndpoint(
        {"/metrics": meter.exposition},
        address=section.address,
        port=section.sink_port,
        setting="HERMES_QUEUE_METRICS_SINK_PORT",
    )
    with closing(endpoint):
        yield SinkMeter(sink, meter, endpoint.port)
