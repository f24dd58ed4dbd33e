"""Consume -> Atropos: groups of eight trajectories of 8,192 tokens to the real API server.

The server and a trainer that takes every batch of 128 sequences at once are processes of their
own. CPU time is the sink's; theirs stands beside it. `settle` is how long the sink waits before
it takes a batch as read.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from benchmarks.jobs import jobs, publish, record
from benchmarks.measuring import HERE, Cases, Part, Turn, metered
from benchmarks.processes import QUIET, ROOT, process, redis_server, until
from hermes_queue.ledger import Ledger
from hermes_queue.sinks.atropos.options import AtroposOptions
from hermes_queue.sinks.atropos.sink import AtroposSink

GROUPS = 32
SIZE, TOKENS, BATCH = 8, 8192, 128
TRAINER = ROOT / "tests" / "support" / "atropos_trainer.py"


async def serve(redis_url: str, url: str, settle_s: float, groups: int) -> None:
    """Send all groups."""
    sink = AtroposSink(AtroposOptions(url=url, redis_url=redis_url, settle_s=settle_s))
    running = asyncio.create_task(sink.run())
    while sink.counts.acknowledged < groups and not running.done():
        await asyncio.wait({running}, timeout=0.05)
    sink.stop()
    await running


def registered(url: str) -> bool:
    """Whether the trainer has."""
    try:
        with urllib.request.urlopen(f"{url}/info") as answer:
            return bool(json.load(answer)["batch_size"] > 0)
    except OSError:
        return False


def send(settle_s: float, groups: int) -> Turn:
    """Publish the groups, then serve them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    api = [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", port]
    quiet = {"stdout": QUIET, "stderr": QUIET}
    with redis_server() as server, tempfile.TemporaryDirectory() as folder:
        with closing(Ledger.connect(url=server.url)) as ledger:
            made = list(jobs(groups * SIZE, group_size=SIZE, env="gsm8k", item={"x": 1}))
            shape = {"tokens": TOKENS, "words": 1, "sampled": 0.35}
            publish(ledger, made, [record(job, **shape) for job in made])  # type: ignore[arg-type]
        trainer = [sys.executable, str(TRAINER), url, f"{folder}/log", "--step-s", "0"]
        with (
            process(api, **quiet) as api_process,
            process([*trainer, "--batch-size", str(BATCH)], **quiet) as trainer_process,
        ):
            until(lambda: registered(url), api_process, trainer_process)
            pids = {"api": api_process.pid, "trainer": trainer_process.pid}
            with metered(redis=server.pid, **pids) as meter:
                asyncio.run(serve(server.url, url, settle_s, groups))
    return meter.turn(groups, of=(HERE,))


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """Two ways to settle."""
    groups = max(BATCH // SIZE, int(GROUPS * scale) // (BATCH // SIZE) * (BATCH // SIZE))
    yield {
        f"settle {settle_s:g} s": {"ours": partial(send, settle_s, groups)}
        for settle_s in (0.0, 2.0)
    }


PART = Part("group", cases, rounds=1)
