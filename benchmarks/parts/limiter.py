"""Worker processes that share an endpoint which serves 20 calls at once and refuses the others.

Four processes of 30 chat clients each call it as fast as they get leave: ours through the limiter
of the fleet, the other side without. `ideal_percent`: time that the endpoint was busy, of 20 calls
for the whole time; `refused_percent` of all calls. Counted once the limit had settled. CPU time is
that of all clients, of Redis and of the endpoint.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from benchmarks.capped_endpoint import CappedEndpoint
from benchmarks.measuring import Cases, Part, Turn, metered
from benchmarks.processes import redis_server
from hermes_queue.agent import AgentScript, Unlimited, make_chat
from hermes_queue.errors import ModelError
from hermes_queue.models import AgentSpec, Message, ToolCall
from hermes_queue.settings import ModelSettings
from workers.calls.fleet_limiter import FleetLimiter

PROCESSES, TASKS, CAP = 4, 30, 20
SERVICE_S = (0.25, 0.75)
SETTLE_S, SECONDS = 15.0, 25.0
MODEL = "m"


@dataclass(frozen=True)
class Load:
    """What one process does."""

    redis_url: str
    endpoint: str
    tasks: int
    limited: bool = True


async def _no_gold() -> tuple[list[ToolCall], str]:
    return [], ""


async def _calls(load: Load) -> None:
    """Call the endpoint with so many tasks until the process is ended."""
    limiter = FleetLimiter(load.redis_url) if load.limited else Unlimited()
    spec = AgentSpec(kind="openai", model=MODEL, base_url=load.endpoint)
    script = AgentScript(oracle=_no_gold, limiter=limiter)

    async def task() -> None:
        chat = make_chat(spec, script, ModelSettings(max_retries=10, trusted_urls=load.endpoint))
        while True:
            with suppress(ModelError):
                question = [Message(role="user", content="3 + 4?")]
                await chat.complete(question, [], {}, time.monotonic() + 60)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.tasks):
            group.create_task(task())


def work(load: Load) -> None:
    """The main function of a process."""
    logging.disable()  # without a limiter there is a line for each call that fails
    asyncio.run(_calls(load))


async def _share(redis_url: str, redis_pid: int, limited: bool, scale: float) -> Turn:
    context = multiprocessing.get_context("spawn")
    async with CappedEndpoint(CAP, SERVICE_S) as endpoint:
        load = Load(redis_url, endpoint.url, TASKS, limited)
        clients = [context.Process(target=work, args=(load,)) for _ in range(PROCESSES)]
        for client in clients:
            client.start()
        try:
            while not endpoint.served:  # noqa: ASYNC110 - it is looked at, not told
                await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
            endpoint.reset()
            with metered(redis=redis_pid) as meter:
                await asyncio.sleep(SECONDS * scale)
            served, refused = endpoint.served, endpoint.refused
            ideal = 100 * endpoint.busy_s / (CAP * meter.wall_s)
        finally:
            for client in clients:
                client.kill()
                client.join()
    facts = {"ideal_percent": ideal, "refused_percent": 100 * refused / max(1, served + refused)}
    return meter.turn(max(1, served), facts=facts)


def share(limited: bool, scale: float) -> Turn:
    """One endpoint, one Redis."""
    with redis_server() as server:
        return asyncio.run(_share(server.url, server.pid, limited, scale))


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case."""
    sides = {"no limiter": partial(share, False, scale), "ours": partial(share, True, scale)}
    yield {f"{PROCESSES * TASKS} clients, {CAP} at once": sides}


PART = Part("call", cases, rounds=1)
