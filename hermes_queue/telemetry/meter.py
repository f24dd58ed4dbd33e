"""Counters and histograms of this process, in Prometheus' format.

Only `PrometheusMeter` loads `prometheus_client` (the extra `metrics`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.telemetry.metrics import METRICS, Metric, MetricSource

OTHER = "other"
"""Replaces all values of a label beyond the bound."""
_LABEL_LENGTH = 120

Labels = Mapping[str, str]
Values = Mapping[tuple[str, ...], float]
"""Values of a metric's labels, in order -> value of the metric."""


class Meter:
    """Takes counts and measurements and discards them. Thread-safe; label values are any text."""

    def add(self, metric: Metric, labels: Labels, amount: float = 1.0) -> None:
        """Increase a counter."""

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add a value to a histogram."""


class PrometheusMeter(Meter):
    """A `Meter` that Prometheus can scrape.

    Gauges, and counters that are kept elsewhere, are not recorded but read: `values()` is called
    at each scrape.
    """

    def __init__(
        self,
        source: MetricSource,
        *,
        max_label_values: int,
        values: Callable[[], Iterable[tuple[Metric, Values]]] = tuple,
    ) -> None:
        """Create the metrics of one kind of process.

        Args:
            source: the kind of process.
            max_label_values: number of values per label; further values become `OTHER`.
            values: called at each scrape for gauges, and for counters that are kept elsewhere.

        Raises:
            ConfigurationError: `prometheus_client` is not installed.
        """
        try:
            from prometheus_client import (
                CollectorRegistry,
                Counter,
                Histogram,
                disable_created_metrics,
            )
        except ImportError as error:
            raise ConfigurationError(
                "metrics need the package prometheus-client: pip install 'hermes-queue[metrics]', "
                "or unset HERMES_QUEUE_METRICS_WORKER_PORT and HERMES_QUEUE_METRICS_SINK_PORT"
            ) from error
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
        self.registry = CollectorRegistry()
        self._values = values
        self._bound = LabelBound(max_label_values)
        self._recorded: dict[Metric, Any] = {}
        for metric in METRICS:
            if metric.source != source:
                continue
            named: dict[str, Any] = {"name": metric.full_name, "documentation": metric.help}
            named |= {"labelnames": metric.labels, "registry": self.registry}
            if metric.kind == "histogram":
                self._recorded[metric] = Histogram(buckets=metric.buckets, **named)
            elif metric.kind == "counter" and source != "exporter":
                self._recorded[metric] = Counter(**named)
        self.registry.register(_Collector(self._families))

    def add(self, metric: Metric, labels: Labels, amount: float = 1.0) -> None:
        """See `Meter`."""
        self._of(metric, labels).inc(amount)

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """See `Meter`."""
        self._of(metric, labels).observe(value)

    def exposition(self) -> tuple[bytes, str]:
        """All metrics as text, and the content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _of(self, metric: Metric, labels: Labels) -> Any:
        recorded = self._recorded[metric]
        if not metric.labels:
            return recorded
        return recorded.labels(*self._bound(metric, tuple(labels[name] for name in metric.labels)))

    def _families(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric, values in self._values():
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.full_name, metric.help, labels=metric.labels)
            bounded: dict[tuple[str, ...], float] = {}
            for labels, value in values.items():
                key = self._bound(metric, labels)
                bounded[key] = bounded.get(key, 0.0) + value
            for key, value in bounded.items():
                family.add_metric(key, value)
            yield family


class _Collector:
    """The collector that `prometheus_client` calls at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        self.collect = collect

    def describe(self) -> Iterable[Any]:
        """Nothing; otherwise registration would already read the values."""
        return ()


class LabelBound:
    """Limits the number of values per label and metric; the first ones are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[tuple[str, str], set[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, metric: Metric, values: tuple[str, ...]) -> tuple[str, ...]:
        """`values` of the metric's labels, each as it is counted."""
        with self._lock:
            return tuple(
                self._one(metric, label, value[:_LABEL_LENGTH])
                for label, value in zip(metric.labels, values, strict=True)
            )

    def _one(self, metric: Metric, label: str, value: str) -> str:
        seen = self._seen.setdefault((metric.name, label), set())
        if value in seen:
            return value
        if len(seen) >= self._most:
            return OTHER
        seen.add(value)
        return value
