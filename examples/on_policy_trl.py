"""On-policy GRPO with TRL: samples, trains, publishes the new policy version, and goes on.

    python examples/on_policy_trl.py --steps 20

One process of Redis and one worker are started for the run; the policy is a tiny model on the CPU
that learns to answer in vowels. Killed and started again, it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from datasets import Dataset
from tiny_policy import Policy, Server, make
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

import hermes_queue
from hermes_plugins.trainers.trl_rollout import QueueRollout, score
from hermes_queue.broker.embedded import Embedded
from hermes_queue.trainers.feed import Feed

GROUP_SIZE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--run", default="on-policy", help="run id")
    parser.add_argument("--out", type=Path, default=Path("results/on-policy"), help="checkpoints")
    given = parser.parse_args()

    make(given.out / "model")
    policy = Policy(given.out / "model")
    server = Server(policy)  # in place of vLLM
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # workers import vowels.py
    settings = {"HERMES_QUEUE_MODEL_BASE_URL": server.url}
    options = {"run": given.run, "directory": given.out, "group_size": GROUP_SIZE, "max_lag": 0}
    reader = f"trainer-{given.run}"
    with (
        Embedded(run_id=given.run, concurrency=4, settings=settings) as local,
        Feed(reader, min_std=None, url=local.redis_url, **options) as feed,
    ):
        from_queue = QueueRollout(feed, idle_timeout_s=600)

        def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
            policy.load(trainer.accelerator.unwrap_model(trainer.model).state_dict())
            policy.version = feed.published(trainer.state.global_step)
            hermes_queue.enqueue(
                run_id=given.run,
                env="vowels:ENV",
                items=[{"instance_id": each, "question": each} for each in dict.fromkeys(prompts)],
                step=policy.version,  # never twice, not even after a crash
                group_size=GROUP_SIZE,
                agent=hermes_queue.AgentSpec(
                    kind="openai",
                    model="policy",
                    params={"token_ids": True, "policy_version": "model"},
                    sampling={"temperature": 1.0, "max_tokens": 12},
                ),
                url=local.redis_url,
            )
            return from_queue(prompts, trainer)

        trainer = GRPOTrainer(
            str(given.out / "model"),
            args=GRPOConfig(
                output_dir=str(given.out),
                max_steps=given.steps,
                save_steps=5,
                logging_steps=1,
                learning_rate=1e-2,
                num_generations=GROUP_SIZE,
                per_device_train_batch_size=2 * GROUP_SIZE,
                model_init_kwargs={"dtype": "float32"},
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                report_to=[],
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"Say aah {n}." for n in range(16)]}),
            reward_funcs=score,
            rollout_func=rollout,
            callbacks=[from_queue.callback],
        )
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(given.out)))
    server.close()
    for each in trainer.state.log_history:
        if "reward" in each:
            print(f"step {each['step']:3}  mean score {each['reward']:.3f}")
    print(f"policy version {feed.version}, {feed.counts.trained} groups trained")


if __name__ == "__main__":
    main()
