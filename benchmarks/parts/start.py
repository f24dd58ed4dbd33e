"""What starting costs: imports, `--help`, a worker's first trajectory.

Each is a process of its own, counted from its start to its end; the worker until one no-op
trajectory is final (its sandbox does nothing). Bare: what a reader of results would import
without us (redis, pydantic), and a Python that does nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from benchmarks import noop
from benchmarks.jobs import ROW, RUN, jobs
from benchmarks.measuring import Cases, Part, Side, Turn, metered
from benchmarks.processes import redis_server, until, worker
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec

COUNT = 4
HELP = "import sys; sys.argv[1:] = ['--help']; from hermes_queue.cli import main; main()"


def processes(count: int, program: str) -> Turn:
    """Python with this program, so many times in a row."""
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # compiles, and reads the files
    with metered() as meter:
        for _ in range(count):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return meter.turn(count)


def first_trajectory() -> Turn:
    """From the start of a worker until one is final."""
    with redis_server() as server, closing(Ledger.connect(url=server.url)) as ledger:
        nop = AgentSpec(kind="nop")
        enqueue(jobs(1, group_size=1, env="gsm8k", item=ROW, agent=nop), ledger=ledger)
        with metered(redis=server.pid) as meter, worker(server, noop.WORKER) as running:
            until(lambda: ledger.run_status(RUN).finished, running)
            meter.end()
            return meter.turn(1)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """See the module."""

    def run(program: str) -> Side:
        return partial(processes, max(1, round(COUNT * scale)), program)

    yield {
        "import": {
            "redis and pydantic": run("import redis, pydantic"),
            "ours": run("import hermes_queue"),
            "ours, consume": run("from hermes_queue import consume"),
        },
        "hermes-queue --help": {"python": run("pass"), "ours": run(HELP)},
        "a worker's first trajectory": {"ours": first_trajectory},
    }


PART = Part("start", cases)
