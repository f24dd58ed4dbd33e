"""Trajectories against a third-party server that fails half of all calls.

    python -m benchmarks.faults --aimock DIR [--trajectories 200] [--concurrency 16]

DIR holds the npm package aimock, which `make test-aimock` puts there. Everything else is real
too: Redis, a worker process, the local sandbox, gsm8k with a terminal call, a calculator call and
an answer. Exits with 1 unless every trajectory was measured or failed honestly, within its
deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import socket
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.jobs import ROW, RUN, jobs
from benchmarks.processes import process, redis_server, worker
from hermes_queue import ScoredTrajectory, consume
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec, GroupPolicy, Limits

HERE = Path(__file__).parent
SHARES = {"drop": 0.22, "malformed": 0.14, "disconnect": 0.14, "ratelimit": 0.18}
"""Drawn one after the other: together a little more than every second call fails."""
AGENT_S = 120.0
TOTAL_S = 300.0
GRACE_S = 30.0
TURNS = 3
SETTINGS = {
    "HERMES_QUEUE_MODEL_OTHER_URLS": "without_key",  # the server's port is not known yet
    "HERMES_QUEUE_RETRY_BACKOFF_S": "1",
    "HERMES_QUEUE_LEASE_MOVER_S": "0.5",
}
"""Of the worker."""


@contextmanager
def aimock(directory: Path) -> Iterator[str]:
    """The server on a port of its own; its URL."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    program = directory / "node_modules/@copilotkit/aimock/dist/cli.js"
    command = ["node", str(program), "-h", "127.0.0.1", "-p", str(port), "--log-level", "silent"]
    command += ["-f", str(HERE / "agent.json"), "--strict", "--metrics"]
    command += [word for name, share in SHARES.items() for word in (f"--chaos-{name}", str(share))]
    with process(command) as server:
        give_up = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > give_up:
                    raise SystemExit(f"aimock does not start: {' '.join(command)}") from None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"


async def records(url: str, groups: int, limit_s: float) -> list[ScoredTrajectory]:
    """Everything published until there are so many groups, or the time is over."""
    found: list[ScoredTrajectory] = []
    seen = 0
    async with asyncio.timeout(limit_s):
        async for group in consume("faults", url=url):
            await group.ack()
            found += [*group.members, *group.extras]
            seen += 1
            if seen == groups:
                break
    return found


def seen(endpoint: str) -> tuple[int, int]:
    """Calls that the server saw, and how many of them it failed on purpose."""
    with urllib.request.urlopen(endpoint.removesuffix("/v1") + "/metrics", timeout=30) as answer:
        text = answer.read().decode()

    def total(name: str) -> int:
        return sum(int(n) for n in re.findall(rf"^{name}{{.*}} (\d+)$", text, re.MULTILINE))

    failed = total("aimock_chaos_triggered_total")
    counted = re.findall(r"requests_total\{.*chat/completions.*\} (\d+)$", text, re.MULTILINE)
    return sum(map(int, counted)), failed


def dishonest(record: ScoredTrajectory) -> str:
    """What is wrong with a record; "" when it is as it should be."""
    if record.status == "failed":
        failure = record.failure
        honest = failure is not None and failure.cause == "model" and "last: " in failure.message
        return "" if honest and record.score is None else f"failed without a reason: {failure}"
    if (record.score, record.stop_reason, len(record.turns)) != (1.0, "no_tool_call", TURNS):
        return f"score {record.score}, {record.stop_reason}, {len(record.turns)} turns"
    roles = [message.role for message in record.messages]
    if roles != ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]:
        return f"messages {roles}"
    if (record.tool_calls.attempted, record.tool_calls.ok) != (2, 2):
        return f"tool calls {record.tool_calls}"
    late_s = record.stage_seconds["agent"] - waited_s(record) - AGENT_S - GRACE_S
    return f"{late_s:.0f} s past its deadline" if late_s > 0 else ""


def waited_s(record: ScoredTrajectory) -> float:
    """What the last attempt waited between tries."""
    return sum(float(event.get("waited_s", 0.0)) for event in record.events)


def report(
    found: list[ScoredTrajectory], calls: int, faults: int, wall_s: float, expected: int
) -> int:
    """Print the table; the exit code."""
    tries = [e for r in found for e in r.events if e["event"] == "model_retry"]
    reasons = Counter(event["reason"].split(":")[0] for event in tries)
    attempts = Counter(record.attempt for record in found)
    agent_s = sorted(record.stage_seconds.get("agent", 0.0) for record in found)
    wrong = {r.trajectory_id: fault for r in found if (fault := dishonest(r))}
    measured = sum(record.score is not None for record in found)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [
        ("trajectories published", f"{len(found)} of {expected}"),
        ("  measured, score 1.0", str(measured)),
        ("  failed with cause model", str(sum(r.status == "failed" for r in found))),
        ("  attempts 1 / 2 / 3 / 4", " / ".join(str(attempts[n]) for n in range(1, 5))),
        ("calls that the server saw", f"{calls}, of which it failed {faults / calls:.1%}"),
        ("failed tries on the records", str(len(tries))),
        *((f"  {reason}", str(count)) for reason, count in reasons.most_common()),
        ("agent stage, waits included", f"median {agent_s[len(agent_s) // 2]:.1f} s"),
        ("  longest", f"{agent_s[-1]:.1f} s"),
        ("dishonest or late", str(len(wrong))),
        ("wall / CPU of all processes", f"{wall_s:.0f} s / {used.ru_utime + used.ru_stime:.0f} s"),
    ]
    for name, value in rows:
        print(f"{name:30} {value}")
    for trajectory_id, fault in list(wrong.items())[:20]:
        print(f"error: {trajectory_id}: {fault}")
    return 1 if wrong or len(found) != expected or faults < 0.45 * calls else 0


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--aimock", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trajectories", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--limit", type=float, default=1200.0, metavar="S", help="of the whole run")
    arguments = parser.parse_args()
    count = arguments.trajectories
    with redis_server() as server, aimock(arguments.aimock) as endpoint:
        agent = AgentSpec(
            kind="openai", model="m", base_url=endpoint, params={"probe_tools": False}
        )
        limits = Limits(agent_timeout_s=AGENT_S, total_timeout_s=TOTAL_S)
        made = jobs(
            count,
            group_size=1,
            env="gsm8k",
            item=ROW,
            agent=agent,
            limits=limits,
            group_policy=GroupPolicy(),
        )
        ledger = Ledger.connect(url=server.url)
        enqueue(made, ledger=ledger)
        began = time.monotonic()
        with worker(server, SETTINGS, concurrency=arguments.concurrency):
            try:
                found = asyncio.run(records(server.url, count, arguments.limit))
            except TimeoutError:
                raise SystemExit(
                    f"hangs: after {arguments.limit:.0f} s {ledger.run_status(RUN)}"
                ) from None
            wall_s = time.monotonic() - began
            calls, faults = seen(endpoint)
        ledger.close()
    sys.exit(report(found, calls, faults, wall_s, count))


if __name__ == "__main__":
    main()
