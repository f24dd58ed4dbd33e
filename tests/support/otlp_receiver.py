"""A receiver of OTLP over HTTP that takes what the protocol allows and refuses all else.

It decodes with the protocol's own definitions, and can misbehave as collectors do.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_KINDS: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
}
_SPAN_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True)
class ReceivedSpan:
    """One span, with readable ids and attributes."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    begins_ns: int
    ends_ns: int
    attributes: Mapping[str, Any]
    failed: bool
    message: str
    events: list[tuple[str, Mapping[str, Any]]]
    links: list[tuple[str, str]]
    resource: Mapping[str, Any]


@dataclass
class Receiver:
    """What has been received, and how the next request is answered."""

    url: str = ""
    requests: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the protocol does not allow."""
    status: int = 200
    body: bytes | None = None
    """The answer's body in place of the right one."""
    misbehave: Callable[[BaseHTTPRequestHandler], None] | None = None
    """Called with the request in place of an answer."""
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def spans(self) -> list[ReceivedSpan]:
        """All spans so far."""
        return [
            _span(span, _attributes(of_resource.resource.attributes))
            for request in self._of("/v1/traces")
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]

    def lines(self) -> list[Any]:
        """All log records so far."""
        return [
            line
            for request in self._of("/v1/logs")
            for of_resource in request.resource_logs
            for of_scope in of_resource.scope_logs
            for line in of_scope.log_records
        ]

    def metrics(self) -> dict[str, Any]:
        """The newest of each metric, by name."""
        return {
            metric.name: metric
            for request in self._of("/v1/metrics")
            for of_resource in request.resource_metrics
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
        }

    def until(self, found: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        """The first true result of `found`, which is called after each request."""
        with self.arrived:
            self.arrived.wait_for(found, timeout_s)
            result = found()
        assert result, f"received only {sorted({span.name for span in self.spans()})}"
        return result

    def _of(self, path: str) -> list[Any]:
        return [request for request in [*self.requests] if isinstance(request, _KINDS[path][0])]


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver on a free port of 127.0.0.1."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            problem = receiver_takes(receiver, self.path, dict(self.headers), data)
            with receiver.arrived:
                receiver.arrived.notify_all()
            if receiver.misbehave:
                receiver.misbehave(self)
                return
            self.send_response(400 if problem else receiver.status)
            right = _KINDS.get(self.path, (None, ExportTraceServiceResponse))[1]()
            body = right.SerializeToString() if receiver.body is None else receiver.body
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                return

        def log_message(self, format: str, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def receiver_takes(
    receiver: Receiver, path: str, headers: dict[str, str], data: bytes
) -> str | None:
    """Decode one request into the receiver; returns what is wrong with it."""
    problem = None
    if path not in _KINDS:
        problem = f"no such path: {path}"
    elif headers.get("Content-Type") != "application/x-protobuf":
        problem = f"content type {headers.get('Content-Type')}"
    else:
        try:
            plain = gzip.decompress(data) if headers.get("Content-Encoding") == "gzip" else data
            request = _KINDS[path][0].FromString(plain)
            problem = _unlawful(request) if path == "/v1/traces" else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not lawful
            problem = f"{type(error).__name__}: {error}"
    if problem:
        receiver.refused.append(problem)
        return problem
    receiver.headers.append(headers)
    receiver.requests.append(request)
    return None


def slow(seconds: float) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers, but a byte at a time for so long."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                request.wfile.write(b"x")
            except OSError:
                return
            time.sleep(0.05)

    return answer


def _unlawful(request: Any) -> str | None:
    """What the protocol does not allow in spans."""
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                ids = (len(span.trace_id), len(span.span_id))
                if ids != (16, 8) or not any(span.trace_id) or not any(span.span_id):
                    return f"ids of {span.name}"
                if len(span.parent_span_id) not in (0, 8):
                    return f"parent of {span.name}"
                if not span.name or span.end_time_unix_nano < span.start_time_unix_nano:
                    return f"name or times of {span.name!r}"
                names = [each.key for each in span.attributes]
                if len(set(names)) != len(names):
                    return f"attributes of {span.name}"
    return None


def _span(span: Any, resource: Mapping[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _SPAN_KINDS[span.kind],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == 2,
        span.status.message,
        [(event.name, _attributes(event.attributes)) for event in span.events],
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def tree(spans: list[ReceivedSpan]) -> str:
    """The spans of one trace as an indented list with milliseconds, for people."""
    known = {span.span_id for span in spans}
    first = min(span.begins_ns for span in spans)
    lines: list[str] = []

    def show(parent: str | None, depth: int) -> None:
        for span in sorted(spans, key=lambda each: each.begins_ns):
            is_root = span.parent_id not in known
            if (parent is None and is_root) or (parent is not None and span.parent_id == parent):
                began, took = (span.begins_ns - first) / 1e6, (span.ends_ns - span.begins_ns) / 1e6
                mark = " FAILED" if span.failed else ""
                lines.append(f"{'  ' * depth}{span.name}{mark}  +{began:.0f} ms, {took:.1f} ms")
                show(span.span_id, depth + 1)

    show(None, 0)
    return "\n".join(lines)
