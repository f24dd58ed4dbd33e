"""Inspect View over logs that Inspect wrote, in its own virtual environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.plugins.view.ours import TURN_BYTES, TURNS, free_port, serves
from benchmarks.plugins.view.pages import Place
from benchmarks.processes import PEERS, peer_python, process, until

MAKING_S = 600.0
"""Bound for writing the logs."""
LIMIT_S = 240.0
"""Bound for opening the log of 100,000."""
FEW = 50


def made(directory: Path, count: int) -> dict[str, Any] | str:
    """Write the logs, of `count` samples, of a few and of a long one; or why they are not there."""
    python = peer_python("inspect")
    if isinstance(python, str):
        return python
    program = PEERS / "make_inspect_logs.py"
    if directory.exists():
        return {}
    command = [str(python), str(program), str(directory)]
    command += map(str, (count, FEW, TURNS, TURN_BYTES))
    directory.mkdir()
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=MAKING_S
        )
    except subprocess.TimeoutExpired:
        shutil.rmtree(directory)
        return f"its logs were not written within {MAKING_S:.0f} s"
    if done.returncode:
        shutil.rmtree(directory)
        return f"its logs could not be written: {done.stderr[-500:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class InspectView:
    """Its server over one of the directories."""

    def __init__(self, origin: str, pid: int, log: str) -> None:
        self.pid = pid
        self.place = Place(origin, "/api/no-such-page")
        self._log = log

    @property
    def first(self) -> str:
        """The page one opens."""
        return "/"

    @property
    def sample(self) -> str:
        """The page of the long sample."""
        return f"/#/logs/{self._log}/samples/sample/sample-0/1/"


@contextmanager
def inspect_view(directory: Path) -> Iterator[InspectView]:
    """Serve `directory`, which holds one log, while the block runs."""
    python = peer_python("inspect")
    assert not isinstance(python, str)
    port = free_port()
    [log] = directory.glob("*.eval")
    command = [str(python.parent / "inspect"), "view", "start", "--log-dir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with process(command, env=os.environ | {"HOME": str(directory)}, **quiet) as running:
        origin = f"http://127.0.0.1:{port}"
        until(lambda: serves(origin), running, limit_s=60)
        yield InspectView(origin, running.pid, log.name)


SHOWN = "document.body.textContent.includes('owner__repo.')"
"""Rows of a log are there."""
READ = "document.body.textContent.length > 3000"
"""The sample's first message is there."""
