"""How well worker processes share an endpoint that serves 20 calls at once.

    python -m benchmarks.limiter [--processes 4] [--tasks 30] [--cap 20] [--seconds 40]

Each process runs chat clients as fast as they get leave. Share of the ideal: time the endpoint
was busy, of `cap` calls for the whole measured time. Refused: share of all calls answered 429.
Both are counted from the time when the limit had settled (`--settle` seconds).
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from dataclasses import dataclass

from benchmarks.capped_endpoint import CappedEndpoint
from benchmarks.private_redis import private_redis
from hermes_queue.agent import AgentScript, Unlimited, make_chat
from hermes_queue.errors import ModelError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.limiter import EndpointLimits, limit_name
from hermes_queue.models import AgentSpec, Message, ToolCall
from hermes_queue.settings import LimiterSettings, ModelSettings
from workers.calls.fleet_limiter import FleetLimiter

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
            try:
                question = [Message(role="user", content="3 + 4?")]
                await chat.complete(question, [], {}, time.monotonic() + 60)
            except ModelError as error:
                print(f"process {os.getpid()}: {error}", flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.tasks):
            group.create_task(task())


def work(load: Load) -> None:
    """The main function of a process."""
    asyncio.run(_calls(load))


async def _measure(arguments: argparse.Namespace, redis_url: str, limited: bool) -> None:
    spread = (arguments.service * 0.5, arguments.service * 1.5)
    context = multiprocessing.get_context("spawn")
    async with CappedEndpoint(arguments.cap, spread, arguments.retry_after) as endpoint:
        load = Load(redis_url, endpoint.url, arguments.tasks, limited)
        processes = [context.Process(target=work, args=(load,)) for _ in range(arguments.processes)]
        for process in processes:
            process.start()
        try:
            while not endpoint.served:  # noqa: ASYNC110 - it is looked at, not told
                await asyncio.sleep(0.1)
            await asyncio.sleep(arguments.settle)
            calls = endpoint.served + endpoint.refused
            print(f"settling: {calls} calls, {endpoint.refused} of them answered 429")
            endpoint.reset()
            began = time.monotonic()
            await asyncio.sleep(arguments.seconds)
            seconds = time.monotonic() - began
            share = endpoint.busy_s / (arguments.cap * seconds)
            calls = endpoint.served + endpoint.refused
            print(
                f"{'limiter' if limited else 'no limiter'}: {endpoint.served} calls served in "
                f"{seconds:.1f} s = {share:.1%} of the ideal; {endpoint.refused} answered 429 = "
                f"{endpoint.refused / max(1, calls):.2%} of all calls"
            )
        finally:
            for process in processes:
                process.kill()
                process.join()
    if limited:
        ledger = Ledger.connect(url=redis_url)
        print(EndpointLimits(ledger).state(limit_name(load.endpoint, MODEL)))
        ledger.close()


def _script_rate(redis_url: str, waiting: int) -> None:
    """Calls of acquire and release on one connection, with so many waiters in line."""
    ledger = Ledger.connect(url=redis_url)
    limits = EndpointLimits(ledger, LimiterSettings(start_calls=waiting + 10))
    full = EndpointLimits(ledger, LimiterSettings(start_calls=1, max_calls=1))
    for n in range(waiting):
        full.acquire("line", f"w{n}")
    began = time.perf_counter()
    count = 2000
    for n in range(count):
        (full if waiting else limits).acquire("line", f"r{n % 2}")
        (full if waiting else limits).release("line", f"r{n % 2}")
    each = 2 * count / (time.perf_counter() - began)
    print(f"acquire and release with {waiting} waiters in line: {each:,.0f} script calls/s")
    ledger.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limiter", description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=30, help="of each process")
    parser.add_argument("--cap", type=int, default=20)
    parser.add_argument("--service", type=float, default=0.5, metavar="S", help="mean of a call")
    parser.add_argument("--retry-after", type=float, metavar="S", help="sent with each 429")
    parser.add_argument("--settle", type=float, default=15.0, metavar="S")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--compare", action="store_true", help="also without the limiter")
    arguments = parser.parse_args()
    with private_redis() as url:
        for waiting in (0, 100):
            _script_rate(url, waiting)
        asyncio.run(_measure(arguments, url, True))
        if arguments.compare:
            asyncio.run(_measure(arguments, url, False))


if __name__ == "__main__":
    main()
