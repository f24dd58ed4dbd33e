"""No-op trajectories with OpenTelemetry on and off: CPU time of worker and Redis; 64 at once.

As `factory`, without other systems. The collector is a process of its own that is not counted. It
takes every request and keeps none.

- ours, off: as it is by default
- sampled 0.1: traces of one trajectory in ten
- all: traces of every trajectory
- all signals: traces of one in ten, all metrics, and log lines from `info`

CPU ratios are `ours, off` to each other side: 0.95 x means that the other one costs 5 % more.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.measuring import Cases, Part, Side
from benchmarks.parts import factory
from benchmarks.processes import ROOT, process

COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): ...
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case."""
    count = max(80, int(factory.COUNT * scale) // 40 * 40)
    with process([sys.executable, "-c", COLLECTOR], cwd=ROOT, stdout=subprocess.PIPE) as collector:
        assert collector.stdout is not None
        port = collector.stdout.readline().strip()
        on = {"HERMES_QUEUE_OTEL_ENDPOINT": f"http://127.0.0.1:{port}"}
        sampled = on | {"HERMES_QUEUE_OTEL_SAMPLE": "0.1"}
        sides: dict[str, Side | str] = {
            "ours, off": partial(factory.ours, count),
            "sampled 0.1": partial(factory.ours, count, sampled),
            "all": partial(factory.ours, count, on | {"HERMES_QUEUE_OTEL_SAMPLE": "1"}),
            "all signals": partial(
                factory.ours, count, sampled | {"HERMES_QUEUE_OTEL_SIGNALS": "traces,metrics,logs"}
            ),
        }
        yield {"no-op trajectories, traced": sides}


PART = Part("trajectory", cases)
