"""Enqueues the groups of a chaos run at an even rate; after a kill it is simply started again."""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec, GroupPolicy, Limits, TrajectoryJob, make_ids

RUN = "chaos"
GROUP_SIZE = 4
LONGEST_S = 3.0
ENVS = ("tests.chaos.env:ENV", "tests.chaos.env:IN_BYTES")
"""The work of the first travels as a copy of its slot, that of the second as bytes."""
AGENTS = ("tests.chaos.agent:AGENT", "tests.chaos.agent:RESUMED")
"""After the death of its worker, the first begins anew, and the second goes on."""
POISON_EVERY = 100
"""Number of groups for each poison job."""


def poisoned(index: int) -> str:
    """The stage in which sample 0 of this group kills its workers; "" = none, of nearly all."""
    turn, place = divmod(index, POISON_EVERY)
    if place != POISON_EVERY // 8:
        return ""
    return "verify" if turn % 2 else "setup"


def group(index: int, seed: int) -> list[TrajectoryJob]:
    """Return the jobs of group `index`; the same ones for the same seed."""
    instance = f"{seed}-{index}"
    dice = random.Random(instance)
    seconds = round(dice.uniform(0.0, LONGEST_S), 2)
    how = dice.choice(ENVS), dice.choice(AGENTS)
    row = {"instance_id": instance, "seconds": seconds, "poison": poisoned(index)}
    return [_job(RUN, row, sample, GROUP_SIZE, *how) for sample in range(GROUP_SIZE)]


def sleepers(run_id: str, count: int) -> list[TrajectoryJob]:
    """Return jobs that hold their slots for a quarter of an hour."""
    rows = [{"instance_id": str(n), "seconds": 900.0} for n in range(count)]
    return [_job(run_id, row, 0, 1) for row in rows]


def _job(
    run_id: str,
    row: dict[str, Any],
    sample: int,
    size: int,
    env: str = ENVS[0],
    agent: str = AGENTS[0],
) -> TrajectoryJob:
    group_id, trajectory_id = make_ids(run_id, row["instance_id"], sample)
    return TrajectoryJob(
        run_id=run_id,
        group_id=group_id,
        trajectory_id=trajectory_id,
        sample_index=sample,
        group_size=size,
        env=env,
        instance_id=row["instance_id"],
        item=row,
        agent=AgentSpec(kind=agent),
        limits=Limits(tool_timeout_s=60 + row["seconds"], setup_timeout_s=60),
        group_policy=GroupPolicy(max_refills=2),
    )


def main() -> None:
    """Enqueue, and exit with 0 when all groups are enqueued."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.producer")
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="groups a second")
    parser.add_argument("--began", type=float, required=True, help="unix seconds")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    index = 0
    while index < arguments.groups:
        due = min(arguments.groups, int((time.time() - arguments.began) * arguments.rate) + 1)
        try:
            ledger = Ledger.connect()
            jobs = [job for k in range(index, due) for job in group(k, arguments.seed)]
            enqueue(jobs, ledger=ledger, config={"seed": arguments.seed})
            ledger.close()
            index = max(index, due)  # the clock may have gone back
        except (RedisUnavailable, RedisFull):
            pass  # as a person would, who repeats the command
        time.sleep(0.5)


if __name__ == "__main__":
    main()
