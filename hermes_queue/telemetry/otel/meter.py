"""Counters and histograms of this process, for a collector."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hermes_queue.telemetry.meter import LabelBound, Labels, Meter, Values
from hermes_queue.telemetry.metrics import Metric
from hermes_queue.telemetry.otel.encoding import MetricsRequest
from hermes_queue.telemetry.otel.spans import AttributeValue

SeriesKey = tuple[str, ...]
"""Values of a metric's labels, in order."""


@dataclass(slots=True)
class _Series:
    """One series of a histogram."""

    counts: list[int]
    total: float = 0.0


@dataclass(slots=True)
class _Recorded:
    """All series of a metric."""

    numbers: dict[SeriesKey, float] = field(default_factory=dict)
    histograms: dict[SeriesKey, _Series] = field(default_factory=dict)


class CollectedMeter(Meter):
    """A `Meter` whose values are sent to a collector, and passed on to another one."""

    def __init__(
        self,
        also: Meter,
        *,
        max_label_values: int,
        values: Callable[[], Iterable[tuple[Metric, Values]]] = tuple,
    ) -> None:
        """Begin at zero.

        Args:
            also: gets everything, too.
            max_label_values: number of values per label; further ones become `meter.OTHER`.
            values: called for gauges each time that metrics are sent.
        """
        self._also = also
        self._values = values
        self._bound = LabelBound(max_label_values)
        self._lock = threading.Lock()
        self._recorded: dict[Metric, _Recorded] = {}
        self._began_ns = time.time_ns()

    def add(self, metric: Metric, labels: Labels, amount: float = 1.0) -> None:
        """See `Meter`."""
        self._also.add(metric, labels, amount)
        key = self._key(metric, labels)
        with self._lock:
            numbers = self._recorded.setdefault(metric, _Recorded()).numbers
            numbers[key] = numbers.get(key, 0.0) + amount

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """See `Meter`."""
        self._also.observe(metric, labels, value)
        key = self._key(metric, labels)
        with self._lock:
            histograms = self._recorded.setdefault(metric, _Recorded()).histograms
            series = histograms.get(key)
            if series is None:
                series = histograms[key] = _Series([0] * (len(metric.buckets) + 1))
            series.counts[bisect_left(metric.buckets, value)] += 1
            series.total += value

    def encoded(self, resource: Mapping[str, AttributeValue], version: str) -> tuple[bytes, int]:
        """A request with all values so far, and the number of metrics in it."""
        request = MetricsRequest(resource, version, self._began_ns, time.time_ns())
        with self._lock:
            recorded = {
                metric: (
                    dict(each.numbers),
                    [(key, [*one.counts], one.total) for key, one in each.histograms.items()],
                )
                for metric, each in self._recorded.items()
            }
        count = len(recorded)
        for metric, (numbers, histograms) in recorded.items():
            about = (metric.full_name, metric.help)
            if metric.buckets:
                points = [(_named(metric, key), *rest) for key, *rest in histograms]
                request.histogram(*about, metric.buckets, points)  # type: ignore[arg-type]
            else:
                request.numbers(*about, _points(metric, numbers), grows=True)
        for metric, values in self._values():
            bounded: dict[SeriesKey, float] = {}
            for labels, value in values.items():
                key = self._bound(metric, labels)
                bounded[key] = bounded.get(key, 0.0) + value
            grows = metric.kind == "counter"
            request.numbers(metric.full_name, metric.help, _points(metric, bounded), grows=grows)
            count += 1
        return request.encoded(), count

    def _key(self, metric: Metric, labels: Labels) -> SeriesKey:
        return self._bound(metric, tuple(labels[name] for name in metric.labels))


def _named(metric: Metric, key: SeriesKey) -> dict[str, str]:
    return dict(zip(metric.labels, key, strict=True))


def _points(
    metric: Metric, values: Mapping[SeriesKey, float]
) -> list[tuple[Mapping[str, str], float]]:
    return [(_named(metric, key), value) for key, value in values.items()]
