"""The exporter of a process: takes what there is to export without waiting for anything.

What is taken is encoded by one thread and sent by another one, so that neither a slow collector nor
the work of encoding holds anybody up. All that waits is bounded; what has no room is counted.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import unquote_to_bytes

from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import MetricsSettings, OtelSettings
from hermes_queue.settings.observability import header_pairs
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Meter, Values
from hermes_queue.telemetry.otel.context import SpanContext, of_trajectory
from hermes_queue.telemetry.otel.delivery import Part, PartDelivery
from hermes_queue.telemetry.otel.log_lines import LineFields, LineHandler, LoggedLine
from hermes_queue.telemetry.otel.spans import AttributeValue, TraceSpan
from hermes_queue.telemetry.otel.transport import CollectorTransport

logger = logging.getLogger(__name__)

MOST_PENDING = 1024
"""Attempts, and lines, that wait to be encoded."""
_ENCODE_S = 0.2
_TOGETHER = 32
"""Attempts that are encoded together."""
_SPANS, _SPANS_WITH_CONTENTS = 512, 16
"""Spans of one part of a request, which is sent, or dropped, as a whole."""

_ATTRIBUTES_CHARACTERS = 4096

MakeSpans = Callable[[], Sequence[TraceSpan]]


class OtelExporter:
    """Exports spans, log lines and metrics of this process. Thread-safe.

    A process that is forked off has none: its copy takes nothing and sends nothing.
    """

    def __init__(self, settings: OtelSettings, *, service: str, instance: str) -> None:
        """Start its threads.

        Args:
            settings: with an endpoint.
            service: which of our programs this is, e.g. `worker`.
            instance: name of this process among them.

        Raises:
            ConfigurationError: the extra `otel` is not installed.
        """
        try:
            from hermes_queue.telemetry.otel import encoding
        except ImportError as error:
            raise ConfigurationError(
                "OpenTelemetry needs the package opentelemetry-proto: pip install "
                "'hermes-queue[otel]', or unset HERMES_QUEUE_OTEL_ENDPOINT"
            ) from error
        if settings.endpoint is None:
            raise ConfigurationError("HERMES_QUEUE_OTEL_ENDPOINT: not set")
        self.settings = settings
        self.meter: Meter | None = None
        """What drops are counted in."""
        self.running: dict[str, SpanContext] = {}
        """The attempts that run here, by trajectory: their log lines belong to these spans."""
        self._encoding = encoding
        self._service = service
        self._version = _version()
        self._resource = _resource(service, instance, self._version)
        self._spans: deque[MakeSpans] = deque()
        self._lines: deque[LoggedLine] = deque()
        self._metrics: Callable[[], tuple[bytes, int]] | None = None
        self._handler: logging.Handler | None = None
        self._pid = os.getpid()
        self._closing = threading.Event()
        headers = settings.headers.get_secret_value() if settings.headers else ""
        self._delivery = PartDelivery(
            CollectorTransport(
                settings.endpoint.get_secret_value(), header_pairs(headers), settings.timeout_s
            ),
            most_bytes=settings.queue_bytes,
            interval_s=settings.interval_s,
            on_drop=self._count_drops,
        )
        self._thread = threading.Thread(target=self._run, name="otel-encode", daemon=True)
        self._thread.start()
        _exporters.add(self)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Number of spans, lines and metrics that were dropped, by signal."""
        return dict(self._delivery.dropped)

    @property
    def sent(self) -> Mapping[str, int]:
        """The same of what the collector took."""
        return dict(self._delivery.sent)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are encoded and wait for the collector."""
        return self._delivery.waiting_bytes

    def spans(self, make: MakeSpans) -> None:
        """Export the spans that `make` returns; it is called in a thread, soon."""
        if self._closing.is_set():
            return
        if len(self._spans) >= MOST_PENDING:
            self._delivery.note_drop("traces", 1)
            return
        self._spans.append(make)

    def export_logs(self, to: logging.Logger) -> None:
        """Export lines of a logger and of those below it, if the settings say so."""
        if not self.settings.exports("logs"):
            return
        level = logging.getLevelNamesMapping()[self.settings.log_level.upper()]
        self._handler = LineHandler(self._take_line, level)
        to.addHandler(self._handler)

    def export_meter(
        self, also: Meter, values: Callable[[], Iterable[tuple[metrics.Metric, Values]]] = tuple
    ) -> Meter:
        """The meter to use in place of `also`; `values` are gauges. See `CollectedMeter`."""
        self.meter = also
        if not self.settings.exports("metrics"):
            return also
        from hermes_queue.telemetry.otel.meter import CollectedMeter

        most = MetricsSettings().max_label_values
        meter = CollectedMeter(also, max_label_values=most, values=values)
        self._metrics = lambda: meter.encoded(self._resource, self._version)
        self.meter = meter
        return meter

    def close(self) -> None:
        """Send what waits, for `shutdown_s` at most, and end. Idempotent."""
        if os.getpid() != self._pid or self._closing.is_set():
            return
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        until = time.monotonic() + self.settings.shutdown_s
        self._closing.set()
        self._thread.join(self.settings.shutdown_s / 2)
        self._delivery.close(max(0.0, until - time.monotonic()))
        for signal, unencoded in (("traces", self._spans), ("logs", self._lines)):
            if unencoded:
                self._delivery.note_drop(signal, len(unencoded))
        if any(self.dropped.values()):
            counts = ", ".join(f"{count} of {name}" for name, count in self.dropped.items())
            extra = {"action": "otel_dropped"}
            logger.warning("not exported to the collector: %s", counts, extra=extra)

    def forget(self) -> None:
        """Drop all that waits. For a process that has just been forked off: threads are gone."""
        self._closing = threading.Event()
        self._closing.set()
        self._spans, self._lines = deque(), deque()
        self.meter = None
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)

    def _take_line(self, record: logging.LogRecord, fields: LineFields) -> None:
        if self._closing.is_set():
            return
        if len(self._lines) >= MOST_PENDING:
            self._delivery.note_drop("logs", 1)
            return
        name = fields.get("trajectory_id")
        if isinstance(name, str):
            place = self.running.get(name) or of_trajectory(name, None, 1.0)
            self._lines.append(LoggedLine(record, fields, place.trace_id, place.span_id))
        else:
            self._lines.append(LoggedLine(record, fields))

    def _run(self) -> None:
        next_metrics = time.monotonic() + self.settings.metrics_s
        while not self._closing.wait(_ENCODE_S):
            self._encode_all()
            if time.monotonic() >= next_metrics:
                next_metrics = time.monotonic() + self.settings.metrics_s
                self._guarded("metrics", self._encode_metrics)
        self._encode_all()
        self._guarded("metrics", self._encode_metrics)

    def _encode_all(self) -> None:
        while self._spans:
            self._encode_some()
        if self._lines:
            self._guarded("logs", self._encode_lines)

    def _encode_some(self) -> None:
        """Encode spans of several attempts together: each request says anew who sends it."""
        spans: list[TraceSpan] = []
        shows_contents = self.settings.content
        for _ in range(min(len(self._spans), 1 if shows_contents else _TOGETHER)):
            make = self._spans.popleft()
            self._guarded("traces", partial(_add_made, spans, make))
        size = _SPANS_WITH_CONTENTS if shows_contents else _SPANS
        for start in range(0, len(spans), size):
            part = spans[start : start + size]
            self._guarded("traces", partial(self._encode_spans, part), len(part))

    def _guarded(self, signal: str, encode: Callable[[], None], count: int = 1) -> None:
        """Encode something; what cannot be encoded is dropped, and the thread lives on."""
        try:
            encode()
        except Exception as error:  # noqa: BLE001 - a trace must not end the export of all others
            self._delivery.note_drop(signal, count)
            extra = {"action": "otel_unencoded"}
            logger.warning("%s cannot be exported: %s", signal, type(error).__name__, extra=extra)

    def _encode_spans(self, spans: Sequence[TraceSpan]) -> None:
        body = self._encoding.encode_spans(spans, self._resource, self._version)
        self._delivery.add(Part("traces", body, len(spans)))

    def _encode_lines(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        body = self._encoding.encode_logs(lines, self._resource, self._version)
        self._delivery.add(Part("logs", body, len(lines)))

    def _encode_metrics(self) -> None:
        if self._metrics is not None:
            body, count = self._metrics()
            self._delivery.add(Part("metrics", body, count))

    def _count_drops(self, signal: str, count: int) -> None:
        if self.meter is not None and self._service == "worker":
            self.meter.add(metrics.OTEL_DROPPED, {"signal": signal}, count)


def open_exporter(service: str, instance: str = "") -> OtelExporter | None:
    """The exporter of this process by its settings; None if nothing is to be exported.

    Raises:
        ConfigurationError: the extra `otel` is not installed.
    """
    settings = OtelSettings()
    if settings.endpoint is None:
        return None
    name = instance or f"{platform.node()}-{os.getpid()}"
    return OtelExporter(settings, service=service, instance=name)


def _add_made(spans: list[TraceSpan], make: MakeSpans) -> None:
    spans.extend(make())


def _resource(service: str, instance: str, own_version: str) -> dict[str, AttributeValue]:
    """Who exports, and further attributes from the variables that OpenTelemetry has for them."""
    resource: dict[str, AttributeValue] = {
        "service.name": f"hermes-queue-{service}",
        "service.namespace": "hermes-queue",
        "service.version": own_version,
        "service.instance.id": instance,
        "host.name": platform.node(),
        "process.pid": os.getpid(),
    }
    try:
        resource |= _attributes(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    except ValueError as error:
        # As the specification has it: of a variable with an error, nothing is used.
        text = "OTEL_RESOURCE_ATTRIBUTES is ignored: %s"
        logger.warning(text, error, extra={"action": "otel_attributes"})
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = name
    return resource


def _attributes(text: str) -> dict[str, str]:
    """Pairs `NAME=VALUE`, each percent-encoded, with commas in between.

    Raises:
        ValueError: what is wrong, without the values.
    """
    if len(text) > _ATTRIBUTES_CHARACTERS:
        raise ValueError(f"it has more than {_ATTRIBUTES_CHARACTERS} characters")
    found = {}
    for place, pair in enumerate(filter(str.strip, text.split(",")), 1):
        name, equals, value = (unquote_to_bytes(part.strip()) for part in pair.partition("="))
        if not equals or not name:
            raise ValueError(f"pair {place} is not NAME=VALUE")
        try:
            found[name.decode()] = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"pair {place} is no percent-encoded UTF-8") from None
    return found


def _version() -> str:
    try:
        return version("hermes-queue")
    except PackageNotFoundError:
        return "source"


_exporters: weakref.WeakSet[OtelExporter] = weakref.WeakSet()


def _forget_all() -> None:
    for exporter in list(_exporters):
        exporter.forget()


os.register_at_fork(after_in_child=_forget_all)
