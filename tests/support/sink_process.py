"""`hermes-queue sink ...` as a forked process with pyarrow and the sinks already imported."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from zygote import ForkedProcess, run_forked, zygote

from hermes_queue.ledger import Ledger

IMPORTED = (
    "hermes_queue.cli.sinks.export",
    "hermes_queue.cli.sinks.sink",
    "hermes_queue.ledger",
    "hermes_queue.results.consume",
    "hermes_queue.results.consumers",
    "hermes_queue.sinks.atropos.sink",
    "hermes_queue.sinks.metering",
    "pandas",  # as soon as pyarrow takes a value, where it is installed
    "prometheus_client",
    "pyarrow.parquet",
)


def _environment(ledger: Ledger, more: dict[str, str]) -> dict[str, str]:
    support = str(Path(__file__).parent)
    return {**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url, "PYTHONPATH": support, **more}


def run_sink(
    ledger: Ledger, *arguments: object, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """`hermes-queue *arguments` to its end; it runs the lines `before` first."""
    return run_forked(
        "command_after",
        before,
        *arguments,
        environment=_environment(ledger, environment),
        timeout_s=90,
        imported=IMPORTED,
    )


class SinkProcess:
    """`hermes-queue *arguments`, running. Leave the context, and it is killed."""

    def __init__(self, ledger: Ledger, *arguments: object, **environment: str) -> None:
        self._streams: tuple[IO[bytes], ...] = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._process: ForkedProcess = zygote(*IMPORTED).start(
            "command_after",
            ["", *map(str, arguments)],
            _environment(ledger, environment),
            self._streams[0],
            error=self._streams[1],
        )
        self.poll, self.wait = self._process.poll, self._process.wait
        self.send_signal, self.kill = self._process.send_signal, self._process.kill

    def __enter__(self) -> SinkProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()
        self.wait()
        for stream in self._streams:
            stream.close()

    def printed(self) -> tuple[str, str]:
        """Its stdout and stderr so far."""
        texts = []
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read().decode())
        return texts[0], texts[1]
