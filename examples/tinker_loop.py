"""A training loop on Tinker, or on a server that speaks its protocol, fed by a run of workers.

    TINKER_API_KEY=... python examples/tinker_loop.py --run run1 --model Qwen/Qwen3-8B --steps 200

Killed and started again, it goes on from the last state that the server has saved. The workers
sample from the model whose path it prints: `--agent-param policy_version=model` makes that path the
version of every turn.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import tinker

from hermes_plugins.trainers.tinker import newest_state, train
from hermes_queue.trainers.feed import Feed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="run id")
    parser.add_argument("--model", required=True, help="base model of the adapter")
    parser.add_argument("--url", help="of the server; default: Tinker's")
    parser.add_argument("--out", type=Path, default=Path("results/tinker"), help="of the journal")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--groups", type=int, default=16, help="per step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--rate", type=float, default=4e-5, help="learning rate")
    asyncio.run(loop(parser.parse_args()))


async def loop(given: argparse.Namespace) -> None:
    service = tinker.ServiceClient(base_url=given.url)
    given.out.mkdir(parents=True, exist_ok=True)
    resumed = newest_state(given.out)
    if resumed is None:
        client = await service.create_lora_training_client(given.model, rank=given.rank)
    else:
        client = await service.create_training_client_from_state_with_optimizer(resumed.path)

    def show(step: int, groups: list[Any], answer: Any) -> None:
        scores = [member.score for group in groups for member in group.members]
        print(f"step {step}  mean score {sum(scores) / len(scores):.3f}  {answer.metrics}")

    async def live(path: str, version: int) -> None:
        print(f"version {version} is {path}")  # bring it to your gateway here

    options = {"run": given.run, "directory": given.out, "group_size": given.group_size}
    with Feed(f"tinker-{given.run}", max_lag=4, **options) as feed:
        await train(
            feed,
            client,
            resumed=resumed,
            steps=given.steps,
            groups_per_step=given.groups,
            optimizer=tinker.AdamParams(learning_rate=given.rate),
            on_step=show,
            on_weights=live,
        )


if __name__ == "__main__":
    main()
