"""Trajectories against a real engine, with and without a limit of those in flight.

Contexts grow turn by turn; the tools only wait. Rounds alternate between both, after one round
that does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence

from benchmarks.processes import redis_server
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec, Message, ToolCall
from hermes_queue.settings import EngineSettings, ModelSettings
from workers.calls.admission import FlightLimiter, in_flight
from workers.calls.flights import FleetFlights

EXAMPLE = """\
example, on vLLM with a cache of 16,384 tokens:
  bash tests/live/serve_vllm.sh VENV MODEL 8000 --num-gpu-blocks-override 128
  python -m benchmarks.engines.live http://127.0.0.1:8000/v1 tiny
"""
WORDS = ("list", "show", "count", "test", "the", "files", "of", "README.md", "src", "and", "say")


async def _no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("only an oracle asks")


async def trajectory(
    options: argparse.Namespace, number: int, limiter: Limiter, dice: random.Random
) -> None:
    """One after another: a call, then a tool that waits and says a few words."""
    params = {"probe_tools": False}
    spec = AgentSpec(kind="openai", model=options.model, base_url=options.url, params=params)
    settings = ModelSettings(trusted_urls=options.url, max_retries=20)
    script = AgentScript(_no_gold, trajectory_id=f"t{number}", limiter=limiter)
    chat = make_chat(spec, script, settings)
    messages = [Message(role="user", content=words(dice, options.prompt))]
    sampling = {"max_tokens": options.reply, "ignore_eos": True, "temperature": 0.7}
    with in_flight(limiter):
        for _ in range(options.turns):
            reply = await chat.complete(messages, [], sampling, time.monotonic() + 3600)
            await asyncio.sleep(dice.uniform(0, 2 * options.tool_s))
            said = reply.message.content or "."
            messages.append(Message(role="assistant", content=said))
            messages.append(Message(role="user", content=words(dice, options.observation)))


def words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))


async def a_round(options: argparse.Namespace, flights: FleetFlights | None, seed: int) -> float:
    """Finished trajectories per second."""
    todo = iter(range(options.tasks))

    async def slot() -> None:
        for number in todo:
            calls: Limiter = Unlimited()
            if flights is not None:
                calls = FlightLimiter(calls, flights, f"{seed}-{number}")
            await trajectory(options, number, calls, random.Random(f"{seed}-{number}"))

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(options.slots):
            group.create_task(slot())
    return float(options.tasks / (time.monotonic() - began))


async def compared(options: argparse.Namespace, redis_url: str) -> None:
    def connect() -> Ledger:
        return Ledger.connect(redis_url, timeout_s=5)

    found: dict[str, list[float]] = {"no limit": [], "KV tokens": []}
    for seed in range(options.rounds + 1):
        # In turns, so that what else the machine does meets both.
        for name, rates in sorted(found.items(), reverse=seed % 2 == 0):
            flights = FleetFlights(connect, EngineSettings()) if name == "KV tokens" else None
            rate = await a_round(options, flights, seed)
            if flights is not None:
                await flights.close()
            if seed:
                rates.append(rate)
                print(f"round {seed}: {name}: {rate:.4f} trajectories a second", flush=True)
    await close_clients()
    ratios = [ours / free for free, ours in zip(*found.values(), strict=True)]
    for name, rates in found.items():
        print(f"{name:<10}{statistics.mean(rates):.4f}")
    print(f"ratio     {statistics.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLE,
    )
    parser.add_argument("url", help="of the endpoint, with /v1")
    parser.add_argument("model")
    for name, default, text in (
        ("slots", 32, "trajectories at once"),
        ("tasks", 96, "trajectories of a round"),
        ("rounds", 3, "of each"),
        ("turns", 8, "of a trajectory"),
        ("prompt", 300, "words of the first message"),
        ("observation", 150, "words of each observation"),
        ("reply", 48, "tokens of a reply"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--tool-s", type=float, default=0.5, help="mean wait of a tool (0.5)")
    options = parser.parse_args(given)
    with redis_server() as server:
        asyncio.run(compared(options, server.url))


if __name__ == "__main__":
    main()
