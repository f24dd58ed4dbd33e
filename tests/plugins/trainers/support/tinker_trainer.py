"""A training with Tinker's SDK, which kills itself.

    tinker_trainer.py REDIS_URL TINKER_URL DIRECTORY STEPS KILL

It saves every second step. KILL: `trained:3` (in the journal, before a checkpoint), `sent:4` (the
server has the state, nothing here names it), `named:4` (the file names the state, nothing is
acknowledged), "" = never. It prints the ratios of each step and the counts of the feed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from itertools import compress
from pathlib import Path
from typing import Any

import tinker

from hermes_plugins.trainers.tinker import newest_state, train
from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import rows_of


class KilledFeed(Feed):
    """Kills the process at a point of the training."""

    kill = ""

    def trained(self, step: int, groups: Any) -> None:
        super().trained(step, groups)
        passes(f"trained:{step}", self.kill)

    def saved(self, step: int) -> None:
        passes(f"named:{step}", self.kill)
        super().saved(step)


def passes(point: str, kill: str) -> None:
    if point == kill:
        os.kill(os.getpid(), signal.SIGKILL)


def ratios(groups: list[TrajectoryGroup], answer: Any) -> list[float]:
    """Of the server's probability of each trained token to the sampler's."""
    rows = [row for group in groups for row in rows_of(group)]
    return [
        math.exp(ours - theirs)
        for row, output in zip(rows, answer.loss_fn_outputs, strict=True)
        for ours, theirs in compress(
            zip(output["logprobs"].data, row.logprobs[1:], strict=True), row.mask[1:]
        )
    ]


async def main() -> None:
    """Train."""
    redis, url, directory, steps, kill = sys.argv[1:]
    service = tinker.ServiceClient(base_url=url, api_key="tml-local")
    state = newest_state(directory)
    client = await (
        service.create_training_client_from_state_with_optimizer(state.path)
        if state
        else service.create_lora_training_client(base_model="bigrams", rank=4)
    )
    save = client.save_state

    def save_state(name: str) -> Any:
        future = save(name)
        if name == f"step-{kill.partition(':')[2]}" and kill.startswith("sent"):
            future.result()
            passes(kill, kill)
        return future

    client.save_state = save_state
    seen: list[list[float]] = []
    options = {"run": "run", "directory": Path(directory), "group_size": 4, "url": redis}
    with KilledFeed("trainer", **options) as feed:
        feed.kill = kill
        last = await train(
            feed,
            client,
            resumed=state,
            steps=int(steps),
            groups_per_step=1,
            optimizer=tinker.AdamParams(learning_rate=0.05),
            save_every=2,
            patience_s=5,
            on_step=lambda _, groups, answer: seen.append(ratios(groups, answer)),
        )
        print(json.dumps({"last": last, "ratios": seen, "recognised": feed.counts.recognised}))


if __name__ == "__main__":
    asyncio.run(main())
