"""verl's own trainer loop over our three classes; a list of trajectories stands in for the model.

    verl_trainer.py REDIS_URL DIRECTORY MODE STEPS KILL

Every step trains two groups of two members, every second one is saved. MODE is `sync`, or
`separate_async`: two updates a step, a batch of prompts submitted ahead, and TransferQueue in the
checkpoints. What is replaced of `PPOTrainer` is `_setup`, which starts GPU workers. KILL is
`trained:3` (in the step, after an update), `saved:4` (the checkpoint is complete, its callback was
not called), or "".
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import ray
import torch
import transfer_queue as tq
import verl.trainer.config
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.import_utils import load_class_from_fqn

OURS = "hermes_plugins.trainers.verl"
GENERATED = Path(verl.trainer.config.__path__[0]) / "_generated_ppo_trainer.yaml"


def config_of(directory: Path, *, mode: str = "sync", steps: int = 6, **feed: object) -> DictConfig:
    """verl's configuration with its defaults, and what our page tells users to set."""
    config = OmegaConf.load(GENERATED)
    OmegaConf.set_struct(config, False)
    given = {
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class": f"{OURS}.QueueAgentLoopManager",
        "trainer.checkpoint_callback_class": f"{OURS}.AckOnCheckpoint",
        "trainer.v1.sampler.custom_sampler.path": f"pkg://{OURS}",
        "trainer.v1.sampler.custom_sampler.name": "QueueReplayBuffer",
        "trainer.v1.sampler.sampler_kwargs": {"run": "run", **feed},
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.v1.trainer_mode": mode,
        "trainer.default_local_dir": str(directory),
        "trainer.total_training_steps": steps,
        "trainer.save_freq": 2,
        "trainer.logger": ["console"],
        "actor_rollout_ref.rollout.n": 2,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2 if mode == "sync" else 1,
        f"trainer.v1.{mode}.parameter_sync_step": 1 if mode == "sync" else 2,
        "data.train_batch_size": 2,
        "algorithm.adv_estimator": "grpo",
        "algorithm.rollout_correction": {"bypass_mode": True},
    }
    for key, value in given.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


class Slots:
    """A dataset of numbered slots."""

    def __iter__(self) -> Any:
        while True:
            yield {"raw_prompt": ["slot"] * 2, "index": torch.arange(2)}

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, _: object) -> None:
        """Slots have no place."""


class Weights:
    """A worker group whose weights are the trajectories that were trained."""

    _dispatch_info: ClassVar = {"actor": [0]}

    def __init__(self, trainer: Any) -> None:
        self.trained: list[str] = []
        self.trainer = trainer

    def update_actor(self, batch: Any) -> dict[str, Any]:
        fields = ["extra_fields", "advantages", "old_log_probs", "input_ids", "position_ids"]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        real = [not tag.get("is_padding", False) for tag in batch.tags]
        names = [each["trajectory_id"] for each in list(data["extra_fields"])]
        self.trained += [name for name, is_real in zip(names, real, strict=True) if is_real]
        self.trainer.passes(f"trained:{self.trainer.global_steps}")
        return {"metrics": {"mfu": [0.0]}}

    def save_checkpoint(self, path: str, *_: object, **__: object) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(self.trained), encoding="utf-8")

    def load_checkpoint(self, local_path: str, **_: object) -> None:
        self.trained = json.loads(Path(local_path).read_text(encoding="utf-8"))


class Trainer(PPOTrainer):
    """verl's trainer without its GPU workers."""

    passes: Any = None

    def _setup(self) -> None:
        self.actor_rollout_wg = Weights(self)
        self.train_dataloader, self.train_dataloader_it = Slots(), None
        self.total_training_steps = self.steps_per_epoch = self.config.trainer.total_training_steps
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=0)
        self.distillation_config = None
        self._start_profiling = self._stop_profiling = lambda: None
        self._shutdown_dump_executor = lambda: None
        self._load_checkpoint()

    def on_train_begin(self) -> None:
        if self.trainer_mode != "sync":
            self._add_async_warmup_batches(1)

    def on_step_end(self) -> None:
        """The servers have the weights."""

    def on_sample_end(self) -> None:
        """The servers sleep."""


def main() -> None:
    """As verl's task runner."""
    url, directory, mode, steps, kill = sys.argv[1:]

    def passes(point: str) -> None:
        if point == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    ray.init(namespace="verl", log_to_driver=False, logging_level="error")
    tq.init()
    for partition, keys in ((name, keys) for name, keys in (tq.kv_list() or {}).items() if keys):
        tq.kv_clear(keys=list(keys), partition_id=partition)  # as a new one is empty
    Trainer.passes = staticmethod(passes)
    config = config_of(Path(directory), mode=mode, steps=int(steps), url=url, name="trainer")
    trainer = Trainer(config)
    callback = trainer.checkpoint_callback.on_save

    def on_save(**given: Any) -> None:
        passes(f"saved:{given['global_step']}")
        callback(**given)

    trainer.checkpoint_callback.on_save = on_save
    trainer.init()
    manager = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
    trainer.fit(manager.create(config=config, llm_client=None))
    from hermes_plugins.trainers import verl as ours

    print("recognised", ours._opened().feed.counts.recognised)


if __name__ == "__main__":
    main()
