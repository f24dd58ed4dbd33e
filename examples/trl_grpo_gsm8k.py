"""GRPO with TRL on a run of gsm8k whose workers are elsewhere.

    python -m producers.gsm8k --dataset openai/gsm8k:main --items all --run-id gsm8k1 \\
        --group-size 8 --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1 \\
        --agent-param token_ids=true
    python examples/trl_grpo_gsm8k.py --run gsm8k1 --model MODEL --groups 4 \\
        --vllm http://127.0.0.1:8000

TRL brings the weights of each step to that vLLM. Without `--vllm` the sampling model stays as it
was, and its logprobs are ignored. `--demo` needs none of that: a tiny model guesses sums on the
CPU, and is trained on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

from hermes_plugins.trainers.trl_rollout import QueueRollout, score
from hermes_queue.trainers.feed import Feed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="gsm8k-demo", help="run id")
    parser.add_argument("--model", help="path or name of the model that samples")
    parser.add_argument("--out", type=Path, default=Path("results/gsm8k-grpo"), help="checkpoints")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--groups", type=int, default=2, help="per step and process")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a row")
    parser.add_argument("--vllm", metavar="URL", help="server that samples")
    parser.add_argument("--demo", action="store_true", help="everything on this machine")
    given = parser.parse_args()
    if not given.demo:
        train(given, url=None)
        return
    given.model = str(given.out / "model")
    with demo(given) as url:
        train(given, url)


def train(given: argparse.Namespace, url: str | None) -> None:
    """Train until `--steps`; Redis is `HERMES_QUEUE_REDIS_URL` without `url`."""
    options = {"run": given.run, "directory": given.out, "group_size": given.group_size}
    with Feed(f"grpo-{given.run}", max_lag=4, url=url, **options) as feed:
        rollout = QueueRollout(feed, max_tokens=given.max_tokens, idle_timeout_s=3600)
        slots = {"prompt": [f"slot {n}" for n in range(given.steps * given.groups)]}
        trainer = GRPOTrainer(
            given.model,
            args=GRPOConfig(
                output_dir=str(given.out),
                max_steps=given.steps,
                save_steps=5,
                logging_steps=1,
                learning_rate=1e-3 if given.demo else 1e-6,
                num_generations=given.group_size,
                per_device_train_batch_size=given.groups * given.group_size,
                use_vllm=bool(given.vllm),
                vllm_mode="server",
                vllm_server_base_url=given.vllm,
                use_cpu=given.demo,
                bf16=not given.demo,
                model_init_kwargs={"dtype": "float32" if given.demo else "bfloat16"},
                disable_tqdm=given.demo,
                report_to=[],
            ),
            train_dataset=Dataset.from_dict(slots),
            reward_funcs=score,
            rollout_func=rollout,
            callbacks=[rollout.callback],
        )
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(given.out)))
        print(f"{trainer.state.global_step} steps; {feed.counts}")


@contextmanager
def demo(given: argparse.Namespace) -> Iterator[str]:
    """Redis, a worker, a tiny model that guesses, and a run of sums; yields the URL of Redis."""
    import tiny_policy

    import hermes_queue
    from envs.gsm8k import ENV
    from hermes_queue.broker.embedded import Embedded

    sums = [(a, b) for a in range(20) for b in range(20)][: 2 * given.steps * given.groups]
    rows = [{"question": f"What is {a} + {b}?", "answer": f"#### {(a + b) % 4}"} for a, b in sums]
    prompt = [each.model_dump() for each in ENV.prompt(ENV.Item.model_validate(rows[0]))]
    tiny_policy.make(
        Path(given.model), prompt=prompt, answers=[rf"\boxed{{{n}}}" for n in range(4)]
    )
    server = tiny_policy.Server(tiny_policy.Policy(Path(given.model)))
    settings = {"HERMES_QUEUE_MODEL_BASE_URL": server.url}
    with Embedded(run_id=given.run, concurrency=4, settings=settings) as local:
        hermes_queue.enqueue(
            run_id=given.run,
            env="gsm8k",
            items=rows,
            group_size=given.group_size,
            agent=hermes_queue.AgentSpec(
                kind="openai",
                model="policy",
                params={"token_ids": True, "probe_tools": False},
                sampling={"temperature": 1.0, "max_tokens": 16},
            ),
            url=local.redis_url,
        )
        yield local.redis_url
    server.close()


if __name__ == "__main__":
    main()
