"""Workers of one host that nobody named are told apart."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TWO_WORKERS = (
    "import sys; from hermes_queue.broker.app import app; "
    "print(*(app.Worker(hostname='').hostname for _ in range(2)), flush=True); sys.stdin.read()"
)


@pytest.mark.fleet
def test_each_worker_of_a_host_has_a_name_of_its_own_while_it_lives(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", TWO_WORKERS], subprocess.PIPE
    environment = {**os.environ, "HERMES_QUEUE_PATHS_CACHE": str(tmp_path)}
    host = socket.gethostname()
    for _ in range(2):  # those of the first process have died when the second asks
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as made:
            assert made.stdout
            assert made.stdout.readline().split() == [f"celery@{host}", f"celery2@{host}"]
            made.kill()
