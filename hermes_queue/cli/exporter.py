"""`hermes-queue exporter`: metrics of the whole deployment, for Prometheus."""

from __future__ import annotations

import signal
import threading
from contextlib import closing

import click


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 = any free one.  [default: 9808]",
)
@click.option("--address", help="Address to listen on.  [default: 127.0.0.1]")
def exporter(port: int | None, address: str | None) -> None:
    """Serve metrics of the whole deployment from Redis, until stopped.

    /metrics is for Prometheus to scrape; /targets lists the endpoints of all live workers for
    its http_sd_configs. One exporter per deployment is enough. It only reads, and waits out
    outages of Redis.
    """
    from hermes_queue.cli.deployment_metrics import Exporter
    from hermes_queue.ledger import Ledger
    from hermes_queue.settings import MetricsSettings, WorkerSettings, check_environment
    from hermes_queue.telemetry import logs
    from hermes_queue.telemetry.endpoint import MetricsEndpoint
    from hermes_queue.telemetry.meter import PrometheusMeter

    check_environment()
    logs.configure()
    settings = MetricsSettings()
    lanes = [lane for part in WorkerSettings().lanes.split(",") if (lane := part.strip())]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with closing(Ledger.connect()) as ledger:
        source = Exporter(ledger, lanes=lanes, scan_s=settings.scan_s)
        meter = PrometheusMeter(
            "exporter", max_label_values=settings.max_label_values, values=source.values
        )
        endpoint = MetricsEndpoint(
            {"/metrics": meter.exposition, "/targets": source.targets},
            address=address or settings.address,
            port=settings.exporter_port if port is None else port,
            setting="HERMES_QUEUE_METRICS_EXPORTER_PORT",
        )
        click.echo(f"http://{endpoint.target()}/metrics")
        with closing(endpoint):
            stop.wait()
