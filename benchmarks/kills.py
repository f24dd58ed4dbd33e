"""Model tokens under kills: `python -m benchmarks.kills`, with the turn journal and without it.

Ten-minute trajectories run on several workers, and every minute one of these is killed and started
again. By default all times are a tenth of that, the leases' and snapshots', too; with `--speed 1`
they are the real ones, and those two have their defaults. Counted are the tokens that the endpoint
sampled for the published trajectories, and those that these have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from benchmarks.capped_endpoint import CappedEndpoint, completion
from benchmarks.processes import ROOT, redis_server
from envs.base import Environment, Verdict
from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import Message, ScoredTrajectory, ToolCall, TrajectoryJob, make_ids
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import LeaseSettings, ResumeSettings
from tests.chaos.fleet import Process

RUN = "kills"
COMPLETION_TOKENS = 300
"""Of each reply."""
TRAJECTORY_S = 600.0
"""Length of a trajectory at speed 1."""
KILL_S = 60.0
"""Time between two kills at speed 1."""


class CountItem(BaseModel):
    """One task."""

    instance_id: str
    turns: int


class Count(Environment[CountItem]):
    """The agent adds a line per turn; each must be there once, in order."""

    name: ClassVar[str] = "count"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ("terminal",)
    Item = CountItem

    def prompt(self, item: CountItem) -> list[Message]:
        return [Message(role="user", content=f"{item.turns} turns")]

    def spec(self, item: CountItem, profile: str) -> SlotSpec:
        return SlotSpec(profile=profile)

    async def setup(self, item: CountItem, context: SlotContext) -> None:
        await context.run("git init -q . ; head -c 5000000 /dev/urandom >data")

    async def verify(
        self, item: CountItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        found = (await context.run("cat log")).stdout.decode().split()
        return Verdict(float(found == [str(n) for n in range(item.turns)]))

    async def oracle(self, item: CountItem, context: SlotContext) -> list[ToolCall]:
        return []

    def oracle_answer(self, item: CountItem) -> str:
        return ""

    def tamper(self, item: CountItem) -> Mapping[str, Sequence[ToolCall | str]]:
        return {}


ENV = Count()


class Sampled:
    """Replies that follow from the conversation, and their tokens."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.prompt_tokens = self.completion_tokens = 0

    def reply(self, body: bytes) -> dict[str, Any]:
        messages = json.loads(body)["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": COMPLETION_TOKENS}
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        if turn >= self.turns:
            return completion({"content": "done"}) | {"usage": usage}
        command = json.dumps({"command": f"echo {turn} >>log; seq 300"})
        function = {"name": "terminal", "arguments": command}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        return completion({"content": None, "tool_calls": [call]}) | {"usage": usage}


def jobs_of(count: int, turns: int, url: str) -> list[TrajectoryJob]:
    jobs = []
    for n in range(count):
        instance = f"i{n}"
        group_id, trajectory_id = make_ids(RUN, instance, 0)
        job = {
            "run_id": RUN,
            "group_id": group_id,
            "trajectory_id": trajectory_id,
            "sample_index": 0,
            "env": "benchmarks.kills:ENV",
            "instance_id": instance,
            "item": {"instance_id": instance, "turns": turns},
            "agent": {
                "kind": "openai",
                "model": "m",
                "base_url": url,
                "params": {"probe_tools": False},
            },
            "limits": {"max_turns": turns + 5},
        }
        jobs.append(TrajectoryJob.model_validate(job))
    return jobs


def settings_of(arguments: argparse.Namespace, url: str, directory: str) -> dict[str, str]:
    """Of the workers: times are the defaults, divided by the speed, and quarantine is off."""
    lease, resume = LeaseSettings(), ResumeSettings()
    times = {
        "LEASE_DURATION_S": lease.duration_s,
        "LEASE_RENEW_S": lease.renew_s,
        "LEASE_SWEEP_S": lease.sweep_s,
        "LEASE_MOVER_S": lease.mover_s,
        "RESUME_SNAPSHOT_S": resume.snapshot_s,
    }
    own = {
        **{name: str(time_s / arguments.speed) for name, time_s in times.items()},
        "REDIS_URL": url,
        "RETRY_QUARANTINE_DEATHS": "100000",
        "RESUME_ENABLED": str(arguments.resume).lower(),
        "MODEL_OTHER_URLS": "without_key",
        "PATHS_CACHE": f"{directory}/cache",
        "ARCHIVE_DIRECTORY": f"{directory}/archive",
    }
    named = {f"HERMES_QUEUE_{name}": value for name, value in own.items()}
    return {**os.environ, "PYTHONPATH": str(ROOT), **named}


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    sampled = Sampled(arguments.turns)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="hq-kills-"))
        os.chmod(directory, 0o711)
        pace = TRAJECTORY_S / arguments.speed / arguments.turns
        endpoint = CappedEndpoint(10_000, (0.7 * pace, 1.1 * pace), script=sampled.reply)
        await stack.enter_async_context(endpoint)
        ledger = Ledger.connect(url=server.url)
        jobs = jobs_of(arguments.trajectories, arguments.turns, endpoint.url)
        enqueue(jobs, ledger=ledger, config={})
        environment = settings_of(arguments, server.url, directory)
        workers = [
            _worker(n, arguments, environment, Path(directory)) for n in range(arguments.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            stack.callback(worker.kill)
        began, kills = time.monotonic(), 0
        schedule = random.Random(arguments.seed)
        while not ledger.run_status(RUN).done:
            await asyncio.sleep(KILL_S / arguments.speed)
            if time.monotonic() - began > arguments.minutes * 60:
                break
            if ledger.run_status(RUN).done:
                break
            doomed = schedule.choice(workers)
            await asyncio.to_thread(doomed.kill)
            doomed.start()
            kills += 1
        took_s = time.monotonic() - began
        records = [_record(ledger, job) for job in jobs]
        return _figures(arguments, sampled, [r for r in records if r], kills, took_s)


def _worker(
    number: int, arguments: argparse.Namespace, environment: dict[str, str], directory: Path
) -> Process:
    command = [sys.executable, "-m", "celery", "-A", "hermes_queue", "worker", "-l", "info"]
    command += ["-c", str(arguments.concurrency), "-n", f"w{number}@%h"]
    command += ["--without-gossip", "--without-mingle"]
    return Process(f"w{number}", command, environment, directory / f"w{number}.log")


def _record(ledger: Ledger, job: TrajectoryJob) -> ScoredTrajectory | None:
    body: Any = ledger.client.get(ledger.key(f"body:{job.trajectory_id}"))
    return codec.decode_record(body) if body else None


def _figures(
    arguments: argparse.Namespace,
    sampled: Sampled,
    records: Sequence[ScoredTrajectory],
    kills: int,
    took_s: float,
) -> dict[str, Any]:
    published = sum(record.usage.completion_tokens for record in records)
    events = [event for record in records for event in record.events]
    prompts = sum(record.usage.prompt_tokens for record in records)
    return {
        "resume": arguments.resume,
        "speed": arguments.speed,
        "trajectories": len(records),
        "score 1.0": sum(record.score == 1.0 for record in records),
        "kills": kills,
        "seconds": round(took_s, 1),
        "completion tokens sampled": sampled.completion_tokens,
        "of them published": published,
        "prompt tokens sampled": sampled.prompt_tokens,
        "of those published": prompts,
        "epochs": sum(record.epoch for record in records),
        "continued": sum(event["event"] == "resumed" for event in events),
        "begun anew with a journal": sum(event["event"] == "not_resumed" for event in events),
    }


def main() -> None:
    """Measure one side, and print it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--trajectories", type=int, default=24)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--speed", type=float, default=10.0, help="1 = the real times")
    parser.add_argument("--minutes", type=float, default=8.0, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action=argparse.BooleanOptionalAction, default=True)
    sys.stdout.write(json.dumps(asyncio.run(measured(parser.parse_args()))) + "\n")


if __name__ == "__main__":
    main()
