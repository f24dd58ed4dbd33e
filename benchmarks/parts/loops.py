"""A thousand agent loops at once in one worker, on a slow scripted endpoint: CPU, memory, lag.

Each loop makes six calls of a model, which answers after 5 to 20 s, and five tool calls
(`terminal`) between them. Everything is real but the model, which is a program here: queue, leases,
limiter, chat client, tools, records. The cases differ in what a tool call does:

- no sandbox: a thousand loops; a command returns at once;
- without isolation: a thousand slots, each a directory with a process that forks bash;
- bubblewrap: two hundred slots with namespaces and limits, as in production: a host of
  docs/scale.md.

Counted are the model calls of 40 s after every loop has made its first one; CPU time is that of the
worker with all below it, and of Redis. `lag_*_ms`: by how much a coroutine of the worker woke too
late. `pss_mb` includes the processes that the slots keep, `worker_rss_mb` does not.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.capped_endpoint import CappedEndpoint, completion
from benchmarks.jobs import ROW, jobs
from benchmarks.lag import WatchedLocal, WatchedNoop, lags_ms, settings
from benchmarks.measuring import Cases, Part, Side, Turn, metered
from benchmarks.processes import Server, redis_server, worker
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec

COUNT, FENCED = 1000, 200
TOOL_CALLS = 5
REPLY_S = (5.0, 20.0)
SECONDS = 40.0
PATIENCE_S = 900.0


def script(body: bytes) -> dict[str, Any]:
    """A tool call, five times; then the answer."""
    roles = [message["role"] for message in json.loads(body)["messages"]]
    number = roles.count("assistant")
    if number == TOOL_CALLS:
        return completion({"content": r"The answer is \boxed{24}."})
    arguments = json.dumps({"command": f"echo $((2*12)) step {number}"})
    call = {"name": "terminal", "arguments": arguments}
    return completion(
        {
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
        }
    )


def loops(count: int, given: dict[str, str], backend: type[WatchedNoop | WatchedLocal]) -> Turn:
    """So many loops in one worker."""
    with redis_server() as server, tempfile.TemporaryDirectory(prefix="hq-bench-") as directory:
        Path(directory).chmod(0o755)
        lag = Path(directory) / "lag"
        found = settings(backend, lag) | given
        found |= {"HERMES_QUEUE_PATHS_CACHE": f"{directory}/cache"}
        return asyncio.run(_loops(count, server, found, lag))


async def _loops(count: int, server: Server, given: dict[str, str], lag: Path) -> Turn:
    async with CappedEndpoint(10 * count, REPLY_S, script=script) as endpoint:
        agent = AgentSpec(kind="openai", model="scripted", params={"probe_tools": False})
        made = jobs(3 * count, group_size=4, env="gsm8k", item=ROW, agent=agent)
        with closing(Ledger.connect(url=server.url)) as ledger:
            await asyncio.to_thread(enqueue, made, ledger=ledger)
        given |= {
            "HERMES_QUEUE_MODEL_BASE_URL": endpoint.url,
            "HERMES_QUEUE_LIMITER_START_CALLS": str(2 * count),
            "HERMES_QUEUE_LIMITER_MAX_CALLS": str(2 * count),
            "HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0",
        }
        with worker(server, given, concurrency=count) as running:
            give_up = time.monotonic() + PATIENCE_S
            while len(endpoint.sessions) < count:
                if running.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"only {len(endpoint.sessions)} of {count} loops began")
                await asyncio.sleep(0.1)
            endpoint.reset()
            began = time.monotonic()
            with metered(worker=running.pid, redis=server.pid) as meter:
                await asyncio.sleep(SECONDS)
            served = endpoint.served
            facts = memory(running.pid) | {"loops": count, "calls_at_once": endpoint.most}
        lags = lags_ms(lag, began, began + SECONDS)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        facts[f"lag_{name}_ms"] = lags[min(len(lags) - 1, int(share * len(lags)))]
    return meter.turn(served, of=("worker", "redis"), facts=facts)


def memory(pid: int) -> dict[str, float]:
    """Of a worker, and of it with all processes below it."""
    below, found = {pid}, dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        found[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    while more := {child for child, parent in found.items() if parent in below} - below:
        below |= more
    sizes = {each: _sizes(each) for each in below}
    return {
        "worker_rss_mb": sizes[pid].get("Rss:", 0) / 1024,
        "worker_pss_mb": sizes[pid].get("Pss:", 0) / 1024,
        "pss_mb": sum(each.get("Pss:", 0) for each in sizes.values()) / 1024,
        "processes": len(below),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def _sizes(pid: int) -> dict[str, int]:
    """Kilobytes by name; of none if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(size) for name, size, *_ in map(str.split, lines)}


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """A case for each kind of slot: they are not compared."""
    count, fenced = max(8, int(COUNT * scale)), max(4, int(FENCED * scale))
    unfenced = {"HERMES_QUEUE_LOCAL_ISOLATION": "none"}
    sides: dict[str, Side] = {
        f"{count} loops, no sandbox": partial(loops, count, {}, WatchedNoop),
        f"{count} loops, slots without isolation": partial(loops, count, unfenced, WatchedLocal),
        f"{fenced} loops, slots in bubblewrap": partial(loops, fenced, {}, WatchedLocal),
    }
    yield {name: {"ours": side} for name, side in sides.items()}


PART = Part("model call", cases, rounds=1)
