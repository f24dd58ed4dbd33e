"""Trajectories against a real engine: without a limit, with limits of calls, and with KV tokens.

Contexts grow turn by turn; the tools only wait. The policies take turns in each round, after one
round that does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.processes import redis_server
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec, Message, ToolCall
from hermes_queue.settings import EngineSettings, LimiterSettings, ModelSettings
from workers.calls.admission import FlightLimiter, in_flight
from workers.calls.fleet_limiter import FleetLimiter
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
    options: argparse.Namespace, number: int, limiter: Limiter, dice: random.Random, name: str
) -> None:
    """One after another: a call, then a tool that waits and says a few words.

    `name` begins its first prompt, so that nothing is in the engine's cache from another one.
    """
    params = {"probe_tools": False}
    spec = AgentSpec(kind="openai", model=options.model, base_url=options.url, params=params)
    settings = ModelSettings(trusted_urls=options.url, max_retries=20)
    script = AgentScript(_no_gold, trajectory_id=f"t{number}", limiter=limiter)
    chat = make_chat(spec, script, settings)
    messages = [Message(role="user", content=f"{name} {words(dice, options.prompt)}")]
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


class Policy:
    """Who may call the engine, and when: here everybody, at once."""

    def limiter(self, flight: str) -> Limiter:
        """For one trajectory."""
        return Unlimited()

    async def ended(self) -> None:
        """A round has."""


class Calls(Policy):
    """A number of concurrent calls, fixed or driven by 429s."""

    def __init__(self, redis_url: str, settings: LimiterSettings) -> None:
        self._limiter = FleetLimiter(redis_url, settings)

    def limiter(self, flight: str) -> Limiter:
        return self._limiter


class Tokens(Policy):
    """As workers do, by the metrics of the engine."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._flights: FleetFlights | None = None

    def limiter(self, flight: str) -> Limiter:
        if self._flights is None:
            connect = partial(Ledger.connect, self._url, timeout_s=5)
            self._flights = FleetFlights(connect, EngineSettings())
        return FlightLimiter(Unlimited(), self._flights, flight)

    async def ended(self) -> None:
        if self._flights is not None:
            await self._flights.close()
        self._flights = None


def policies(caps: Sequence[int], stack: ExitStack) -> dict[str, Policy]:
    """By the name of each. What one learns in Redis is not known to another."""

    def url() -> str:
        return stack.enter_context(redis_server()).url

    found: dict[str, Policy] = {"no limit": Policy()}
    if caps:
        found["429s"] = Calls(url(), LimiterSettings())
    for cap in caps:
        fixed = LimiterSettings(start_calls=cap, min_calls=cap, max_calls=cap)
        found[f"{cap} calls"] = Calls(url(), fixed)
    return found | {"KV tokens": Tokens(url())}


async def a_round(
    options: argparse.Namespace, name: str, policy: Policy, seed: int
) -> tuple[float, float]:
    """Finished trajectories per second, and CPU seconds of this process for each."""
    todo = iter(range(options.tasks))

    async def slot() -> None:
        for number in todo:
            limiter = policy.limiter(f"{seed}-{number}")
            dice = random.Random(f"{seed}-{number}")
            await trajectory(options, number, limiter, dice, f"{seed} {number} {name}")

    began, cpu_s = time.monotonic(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(options.slots):
            group.create_task(slot())
    took_s = time.monotonic() - began
    await policy.ended()
    return options.tasks / took_s, (time.process_time() - cpu_s) / options.tasks


def turns(names: Sequence[str], round_number: int) -> list[str]:
    """The order of a round; in twice as many rounds as names, each has each place twice."""
    start = (round_number + 1) // 2 % len(names)
    order = [*names[start:], *names[:start]]
    return order if round_number % 2 else order[::-1]


async def compared(options: argparse.Namespace, known: dict[str, Policy]) -> None:
    found: dict[str, list[float]] = {name: [] for name in known}
    cpu: dict[str, list[float]] = {name: [] for name in known}
    for seed in range(options.rounds + 1):
        for name in turns(list(known), seed):
            rate, cpu_s = await a_round(options, name, known[name], seed)
            if seed:
                found[name].append(rate)
                cpu[name].append(cpu_s)
                print(f"round {seed}: {name}: {rate:.4f} trajectories a second", flush=True)
    await close_clients()
    for name, rates in found.items():
        cpu_ms = 1000 * statistics.mean(cpu[name])
        print(f"{name:<10}{statistics.mean(rates):.4f}  {cpu_ms:.0f} ms of CPU each", end="")
        ratios = [ours / each for each, ours in zip(rates, found["KV tokens"], strict=True)]
        print(
            f"  KV tokens: {statistics.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


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
    parser.add_argument(
        "--caps", type=int, nargs="*", default=[], help="of calls, beside the limit that 429s drive"
    )
    options = parser.parse_args(given)
    with ExitStack() as stack:
        asyncio.run(compared(options, policies(options.caps, stack)))


if __name__ == "__main__":
    main()
