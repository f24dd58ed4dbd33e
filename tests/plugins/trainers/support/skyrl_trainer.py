"""SkyRL's own trainer loop over our generator; a list of rows stands in for the model.

    skyrl_trainer.py REDIS_URL DIRECTORY MODE KILL

Six steps of one group of two, every second one saved. MODE is `sync` or `fully_async`. What is
replaced of SkyRL's trainer are its GPU workers. KILL is `trained:3`, `saved:4` (the checkpoint is
complete, it was not acknowledged) or "".
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # SkyRL 0.3 gives pydantic those of Python 3.12
from skyrl.train.config import SkyRLTrainConfig  # noqa: E402
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer  # noqa: E402
from skyrl.train.trainer import RayPPOTrainer  # noqa: E402

from hermes_plugins.trainers.skyrl import QueueGenerator, with_acks  # noqa: E402
from hermes_queue.trainers.feed import Feed  # noqa: E402

STEPS = 6


class Slots:
    """A dataset of numbered slots."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, n: int) -> dict[str, Any]:
        prompt = [{"role": "user", "content": f"slot {n}"}]
        return {"prompt": prompt, "env_class": None, "env_extras": {}, "uid": str(n)}

    def collate_fn(self, rows: list[Any]) -> list[Any]:
        return rows


class Workers:
    """The dispatch to GPU workers, whose weights are the rows that were trained."""

    def __init__(self) -> None:
        self.trained: list[list[int]] = []

    def save_checkpoint(self, _: str, directory: str, *__: object) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "weights.json").write_text(json.dumps(self.trained), encoding="utf-8")

    def load_checkpoint(self, _: str, directory: str, **__: object) -> None:
        self.trained = json.loads((Path(directory) / "weights.json").read_text(encoding="utf-8"))

    async def save_weights_for_sampler(self) -> None:
        """The servers have the weights."""

    def get_lcm_dp_size(self) -> int:
        return 1


def config_of(directory: Path, mode: str) -> Any:
    config = SkyRLTrainConfig()
    trainer, generator = config.trainer, config.generator
    trainer.ckpt_path, trainer.resume_mode = str(directory), "latest"
    trainer.train_batch_size = trainer.policy_mini_batch_size = trainer.epochs = 1
    trainer.ckpt_interval, trainer.hf_save_interval = 2, -1
    trainer.eval_interval, trainer.eval_before_train = -1, False
    trainer.placement.colocate_all = False
    generator.n_samples_per_prompt, generator.batched = 2, False
    generator.inference_engine.enable_ray_prometheus_stats = False
    if mode == "fully_async":
        trainer.fully_async.enabled = True
        trainer.fully_async.num_parallel_generation_workers = 2
        trainer.algorithm.policy_loss_type = "rollout_is"
    config.data.dataloader.num_workers, config.data.dataloader.persistent_workers = 0, False
    return config


def trainer_class(mode: str, passes: Any) -> Any:
    base = RayPPOTrainer if mode == "sync" else FullyAsyncRayPPOTrainer

    class Saving(base):  # type: ignore[misc,valid-type]
        def save_checkpoints(self) -> str:
            path: str = super().save_checkpoints()
            passes(f"saved:{self.global_step}")
            return path

    class Trainer(with_acks(Saving)):  # type: ignore[misc]
        def init_weight_sync_state(self) -> None:
            """No servers."""

        def _cleanup_old_checkpoints(self) -> None:
            """They stay."""

        def fwd_logprobs_values_reward(self, training_input: Any) -> Any:
            training_input["values"] = None
            return training_input

        def train_critic_and_policy(self, data: Any) -> dict[str, float]:
            for ids, mask in zip(data["sequences"], data["attention_mask"], strict=True):
                self.dispatch.trained.append(ids[mask.bool()][:2].tolist())
            passes(f"trained:{self.global_step}")
            return {"loss": 0.0}

    return Trainer


def main() -> None:
    """Train."""
    url, directory, mode, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]

    def passes(point: str) -> None:
        if point == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=0, decode=str)
    tracker = SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)
    with Feed("trainer", run="run", directory=directory, group_size=2, url=url) as feed:
        trainer = trainer_class(mode, passes)(
            config_of(directory, mode),
            tracker,
            tokenizer,
            Slots(),
            None,
            QueueGenerator(feed, temperature=1.0),
        )
        trainer.dispatch = Workers()
        asyncio.run(trainer.train())
        print("recognised", feed.counts.recognised)


if __name__ == "__main__":
    main()
