"""Spans, metrics and log lines as protobuf messages of OTLP.

A request is the concatenation of its parts: so is the protobuf encoding of a message that has one
repeated field. What is sent is therefore encoded once, where it is made, and kept as bytes, whose
number is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from hermes_queue.telemetry.otel.log_lines import LoggedLine
from hermes_queue.telemetry.otel.spans import CONTENTS, SCHEMA_URL, AttributeValue, TraceSpan

SCOPE = "hermes_queue"
TEXT_CHARACTERS = 1024
"""Characters of an attribute, beside contents, which have a limit of their own."""
_LONG_CHARACTERS = 1 << 20
_INT64 = 2**63
_SAMPLED = 0x01
_KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_CUMULATIVE = 2
_SEVERITIES = (
    (logging.CRITICAL, 21),
    (logging.ERROR, 17),
    (logging.WARNING, 13),
    (logging.INFO, 9),
    (logging.DEBUG, 5),
)


def encode_spans(
    spans: Iterable[TraceSpan], resource: Mapping[str, AttributeValue], version: str
) -> bytes:
    """A part of a request for `/v1/traces`."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add(schema_url=SCHEMA_URL)
    _set(of_resource.resource.attributes, resource)
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name, of_scope.scope.version = SCOPE, version
    for span in spans:
        made = of_scope.spans.add(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            name=_text(span.name),
            kind=_KINDS[span.kind],
            start_time_unix_nano=_time(span.begins_ns),
            end_time_unix_nano=max(_time(span.begins_ns), _time(span.ends_ns)),
            flags=_SAMPLED,
            dropped_links_count=span.more_links,
        )
        _set(made.attributes, span.attributes)
        if span.failed:
            made.status.code = trace_pb2.Status.STATUS_CODE_ERROR
            made.status.message = _text(span.message)
        for event in span.events:
            noted = made.events.add(name=event.name, time_unix_nano=_time(event.at_ns))
            _set(noted.attributes, event.attributes)
        for link in span.links:
            made.links.add(trace_id=link.trace_id, span_id=link.span_id, flags=_SAMPLED)
    return _bytes(request)


def encode_logs(
    lines: Iterable[LoggedLine], resource: Mapping[str, AttributeValue], version: str
) -> bytes:
    """A part of a request for `/v1/logs`."""
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add(schema_url=SCHEMA_URL)
    _set(of_resource.resource.attributes, resource)
    of_scope = of_resource.scope_logs.add()
    of_scope.scope.name, of_scope.scope.version = SCOPE, version
    for line in lines:
        record = line.record
        at_ns = _time(int(record.created * 1e9))
        made = of_scope.log_records.add(
            time_unix_nano=at_ns,
            observed_time_unix_nano=at_ns,
            severity_number=_severity(record.levelno),
            severity_text=record.levelname,
            trace_id=line.trace_id,
            span_id=line.span_id,
        )
        _put(made.body, line.text(), _LONG_CHARACTERS)
        _set(made.attributes, line.attributes())
    return _bytes(request)


class MetricsRequest:
    """A request for `/v1/metrics`: all values since the process began."""

    def __init__(
        self, resource: Mapping[str, AttributeValue], version: str, began_ns: int, now_ns: int
    ):
        self._request = ExportMetricsServiceRequest()
        of_resource = self._request.resource_metrics.add(schema_url=SCHEMA_URL)
        _set(of_resource.resource.attributes, resource)
        self._scope = of_resource.scope_metrics.add()
        self._scope.scope.name, self._scope.scope.version = SCOPE, version
        self._times = {"start_time_unix_nano": began_ns, "time_unix_nano": now_ns}

    def numbers(
        self,
        name: str,
        description: str,
        points: Iterable[tuple[Mapping[str, str], float]],
        *,
        grows: bool,
    ) -> None:
        """Add a counter, or a gauge."""
        metric = self._scope.metrics.add(name=name, description=description)
        if grows:
            metric.sum.aggregation_temporality = _CUMULATIVE
            metric.sum.is_monotonic = True
        data: Any = metric.sum if grows else metric.gauge
        for labels, value in points:
            _set(data.data_points.add(as_double=value, **self._times).attributes, labels)

    def histogram(
        self,
        name: str,
        description: str,
        bounds: Iterable[float],
        points: Iterable[tuple[Mapping[str, str], list[int], float]],
    ) -> None:
        """Add a histogram; a point is its labels, counts per bucket and sum."""
        metric = self._scope.metrics.add(name=name, description=description)
        metric.histogram.aggregation_temporality = _CUMULATIVE
        for labels, counts, total in points:
            point: metrics_pb2.HistogramDataPoint = metric.histogram.data_points.add(
                count=sum(counts),
                sum=total,
                bucket_counts=counts,
                explicit_bounds=bounds,
                **self._times,
            )
            _set(point.attributes, labels)

    def encoded(self) -> bytes:
        """The request."""
        return _bytes(self._request)


def _bytes(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _set(into: Any, attributes: Mapping[str, AttributeValue]) -> None:
    # Fields of an added message: making a message to append takes twice as long.
    for name, value in attributes.items():
        pair = into.add()
        pair.key = _text(name)
        _put(pair.value, value, _LONG_CHARACTERS if name in CONTENTS else TEXT_CHARACTERS)


def _put(into: Any, value: AttributeValue, limit: int) -> None:
    if isinstance(value, str):
        into.string_value = _text(value, limit)
    elif isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, int):
        into.int_value = max(-_INT64, min(value, _INT64 - 1))
    elif isinstance(value, float):
        into.double_value = value
    else:
        for each in value:
            _put(into.array_value.values.add(), each, TEXT_CHARACTERS)


def _text(text: str, limit: int = TEXT_CHARACTERS) -> str:
    """`text`, cut, and with half surrogate pairs, which UTF-8 has none of, replaced."""
    cut = text[:limit]
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def _time(at_ns: int) -> int:
    return max(0, min(at_ns, 2**64 - 1))


def _severity(level: int) -> int:
    return next((number for least, number in _SEVERITIES if level >= least), 1)
