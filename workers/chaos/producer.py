"""Enqueues the groups of one chaos run at an even rate; killed, it is simply started again."""

from __future__ import annotations

import argparse
import random
import time

from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec, GroupPolicy, Limits, TrajectoryJob, make_ids
from hermes_queue.queues import enqueue

RUN = "chaos"
GROUP_SIZE = 4
LONGEST_S = 3.0


def group(index: int, seed: int) -> list[TrajectoryJob]:
    """The jobs of group `index`: the same ones for the same seed."""
    instance = f"{seed}-{index}"
    seconds = round(random.Random(instance).uniform(0.0, LONGEST_S), 2)  # noqa: S311 - no secret
    jobs = []
    for sample in range(GROUP_SIZE):
        group_id, trajectory_id = make_ids(RUN, instance, sample)
        jobs.append(
            TrajectoryJob(
                run_id=RUN,
                group_id=group_id,
                trajectory_id=trajectory_id,
                sample_index=sample,
                group_size=GROUP_SIZE,
                env="workers.chaos.env:ENV",
                instance_id=instance,
                item={"instance_id": instance, "seconds": seconds},
                agent=AgentSpec(kind="oracle"),
                limits=Limits(tool_timeout_s=60, setup_timeout_s=60),
                group_policy=GroupPolicy(max_refills=2),
            )
        )
    return jobs


def main() -> None:
    """Enqueue, and exit with 0 when all groups are there."""
    parser = argparse.ArgumentParser(prog="python -m workers.chaos.producer")
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
            index = due
        except (RedisUnavailable, RedisFull):
            pass  # as a person would, who repeats the command
        time.sleep(0.5)


if __name__ == "__main__":
    main()
