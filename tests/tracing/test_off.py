"""While tracing is off there is nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys

from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}

LOADS_ALL = """
import sys
import hermes_queue.broker.submission, hermes_queue.sinks.metering, producers.run.launch
import workers.lifecycle, workers.trajectory
from hermes_queue.telemetry.otel.producing import enqueueing
assert enqueueing() is None
with hermes_queue.sinks.metering.metered("jsonl") as meter:
    meter.stored([], 0)
found = [name for name in sys.modules if name.startswith("opentelemetry.proto")]
found += [name for name in sys.modules if name.startswith("workers.tracing.")]
found += [name for name in sys.modules if name == "hermes_queue.telemetry.otel.exporter"]
print(found)
"""


def test_no_module_of_it_is_loaded():
    environment = {k: v for k, v in os.environ.items() if "OTEL" not in k}
    ran = subprocess.run(
        [sys.executable, "-c", LOADS_ALL], env=environment, capture_output=True, text=True
    )
    assert ran.stdout == "[]\n", ran.stderr


def test_without_the_extra_the_worker_says_what_to_install():
    hidden = "import sys; sys.modules['opentelemetry.proto'] = None\n"
    ends = "from hermes_queue.telemetry.otel.exporter import open_exporter; open_exporter('w')"
    environment = {**os.environ, "HERMES_QUEUE_OTEL_ENDPOINT": "http://127.0.0.1:4318"}
    ran = subprocess.run(
        [sys.executable, "-c", hidden + ends], env=environment, capture_output=True, text=True
    )
    assert "pip install 'hermes-queue[otel]'" in ran.stderr


def test_a_collector_that_never_answers_costs_a_worker_no_trajectory(
    ledger, start_worker, collector
):
    collector.misbehave = collector_hangs
    worker = start_worker(
        HERMES_QUEUE_OTEL_SIGNALS="traces,metrics,logs", HERMES_QUEUE_OTEL_SHUTDOWN_S="0.5"
    )
    enqueue([make_job("run", f"i{n}", item=ROW) for n in range(20)], ledger=ledger)
    wait_until("run done", lambda: ledger.run_status("run").done)
    assert worker.terminate(30) == 0
    assert ledger.run_status("run").failed == 0
    assert "not exported to the collector" in worker.log()


def collector_hangs(request):
    """Keep the connection until the client gives up."""
    request.connection.recv(1)
