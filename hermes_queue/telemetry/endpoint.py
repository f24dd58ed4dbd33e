"""An HTTP server in a thread for Prometheus, probes and scalers: `GET /metrics` and little else."""

from __future__ import annotations

import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.telemetry.pages import NotNow, Page

logger = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 10.0
_MOST_CONNECTIONS = 16
"""Of more, the oldest is closed: whoever opens many and sends nothing keeps no probe out."""


class MetricsEndpoint:
    """Serves pages until `close`, to everybody who can reach the address."""

    def __init__(
        self, pages: Mapping[str, Page], *, address: str, port: int, ports: int = 1, setting: str
    ) -> None:
        """Listen on the first free port and serve.

        Args:
            pages: path, e.g. "/metrics" -> page; called in a thread per request.
            address: address to listen on.
            port: first port to try; 0 = any free one.
            ports: number of ports to try, from `port` on.
            setting: the variable that sets the port, for the error message.

        Raises:
            ConfigurationError: none of the ports is available; the message names the variable.
        """
        self._server = _listen(pages, address, port, ports, setting)
        self.address = address
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True
        )
        self._thread.start()
        extra = {"action": "metrics_listen", "port": self.port}
        logger.info("metrics at http://%s:%d/metrics", address, self.port, extra=extra)

    def target(self, advertise: str | None = None) -> str:
        """`host:port` for Prometheus to scrape."""
        host = advertise or self.address
        if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
            host = socket.gethostname()
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._open: OrderedDict[int, socket.socket] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, and close the oldest connection if there are too many."""
        with self._lock:
            self._open[id(request)] = request
            full = len(self._open) > _MOST_CONNECTIONS
            oldest = self._open.popitem(last=False)[1] if full else None
        if oldest is not None:
            with suppress(OSError):  # it has ended in the meantime
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and forget it."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        """Bind without HTTPServer's DNS lookup of a server name, which is not needed."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log at debug level only: a client that disconnects is not an error."""
        logger.debug("a metrics request was aborted")


def _listen(
    pages: Mapping[str, Page], address: str, port: int, ports: int, setting: str
) -> ThreadingHTTPServer:
    class Handler(_Handler):
        known = pages

    kind = type("Server", (_Server,), {"address_family": _family(address, setting)})
    last = min(65535, port + ports - 1) if port else 0
    for candidate in range(port, last + 1):
        try:
            return kind((address, candidate), Handler)  # type: ignore[no-any-return]
        except OSError as error:
            refused = error
    tried = f"port {port}" if last == port else f"ports {port} to {last}"
    raise ConfigurationError(
        f"{setting}: {tried} of {address} is not available: {refused.strerror or refused}; choose "
        "another one, 0 for any free one, or for several workers on one host a range "
        "(HERMES_QUEUE_METRICS_WORKER_PORTS)"
    ) from refused


def _family(address: str, setting: str) -> socket.AddressFamily:
    try:
        return socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        name = setting.rpartition("_METRICS_")[0] + "_METRICS_ADDRESS"
        raise ConfigurationError(f"{name}: {address!r}: {error.strerror}") from error


class _Handler(BaseHTTPRequestHandler):
    known: Mapping[str, Page]
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        page = self.known.get(self.path.partition("?")[0])
        if page is None:
            self._send(404, f"pages: {', '.join(self.known)}\n".encode(), "text/plain")
            return
        try:
            body, content_type = page()
        except NotNow as reason:
            self._send(503, f"{reason}\n".encode(), "text/plain")
            return
        except Exception as error:  # Prometheus shows the status; the log says why
            logger.exception("metrics failed", extra={"action": "metrics_failed"})
            self._send(500, f"{type(error).__name__}\n".encode(), "text/plain")
            return
        self._send(200, body, content_type)

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes are too frequent."""
