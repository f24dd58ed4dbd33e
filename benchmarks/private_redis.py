"""A redis-server with AOF for one benchmark."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_queue.broker.embedded import find_redis_server


@contextmanager
def private_redis() -> Iterator[str]:
    """URL of a redis-server of our own; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as directory:
        socket = Path(directory) / "redis.sock"
        command = [find_redis_server(), "--port", "0", "--unixsocket", str(socket)]
        command += ["--dir", directory, "--save", "", "--appendonly", "yes"]
        server = subprocess.Popen(
            [*command, "--appendfsync", "everysec"], stdout=subprocess.DEVNULL
        )
        try:
            while not socket.exists() and server.poll() is None:
                time.sleep(0.01)
            yield f"unix://{socket}?db=0"
        finally:
            server.terminate()
            server.wait()
