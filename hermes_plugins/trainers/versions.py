"""Versions of trainers that the adapters were tested with, and what they need of them.

A newer version is taken as long as the types and functions that the adapter uses have the same
fields and parameters; otherwise it is refused with what changed, before a step is trained.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from hermes_queue.errors import ConfigurationError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerVersion:
    """A package that an adapter uses."""

    package: str
    """Name of its distribution."""
    version: str
    """That the tests ran with."""
    install: str = ""
    """What to install; "" = `package==version`."""
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields and methods of types and parameters that the adapter uses, by `module:name`."""

    @property
    def requirement(self) -> str:
        """What to tell pip."""
        return self.install or f"{self.package}=={self.version}"


TRAINERS: Mapping[str, TrainerVersion] = {
    "areal": TrainerVersion(
        "areal", "1.0.4", uses={"areal.api.workflow_api:RolloutWorkflow": ("arun_episode",)}
    ),
    "prime_rl": TrainerVersion(
        "prime-rl",
        "0.8.1.dev0",
        install="git+https://github.com/PrimeIntellect-ai/prime-rl@559b447",
        uses={
            "prime_rl.trainer.batch:build_bin_cost": ("model_config",),
            "prime_rl.trainer.batch:prepare_batch": (
                *("rollouts", "seq_len", "num_train_workers", "bin_cost", "pad_to_multiple_of"),
            ),
            "prime_rl.transports.rollouts:FileSystemMicroBatchSender": (
                *("output_dir", "data_world_size", "current_step", "send"),
            ),
            "prime_rl.transports.rollouts:TrainingSample": (
                *("token_ids", "mask", "logprobs", "temperatures", "env_name", "advantages"),
            ),
        },
    ),
    "skyrl": TrainerVersion(
        "skyrl",
        "0.3.0",
        uses={
            "skyrl.train.generators.base:GeneratorInput": ("trajectory_ids", "batch_metadata"),
            "skyrl.train.generators.base:GeneratorOutput": (
                *("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"),
                *("rollout_metrics", "rollout_logprobs", "trajectory_ids", "is_last_step"),
            ),
            "skyrl.train.trainer:RayPPOTrainer": (
                *("convert_to_training_input", "save_checkpoints", "has_critic", "generator"),
            ),
        },
    ),
    "slime": TrainerVersion(
        "slime",
        "624b824",
        install="slime @ git+https://github.com/THUDM/slime@624b824",
        uses={
            "slime.rollout.base_types:RolloutFnTrainOutput": ("samples", "metrics"),
            "slime.utils.types:Sample": (
                *("group_index", "index", "rollout_id", "tokens", "response_length", "reward"),
                *("loss_mask", "rollout_log_probs", "weight_versions", "status", "metadata"),
                "get_reward_value",
            ),
        },
    ),
    "tinker": TrainerVersion(
        "tinker",
        "0.38.0",
        uses={
            "tinker:AdamParams": ("learning_rate",),
            "tinker:Datum": ("model_input", "loss_fn_inputs"),
            "tinker:ModelInput": ("from_ints",),
            "tinker:TrainingClient": (
                *("forward_backward", "optim_step", "save_state", "save_weights_for_sampler"),
            ),
        },
    ),
    "trl_async": TrainerVersion(
        "trl",
        "1.16.0",
        uses={
            "trl.experimental.async_grpo.async_rollout_worker:RolloutSample": (
                *("prompt", "completion", "input_ids", "completion_mask", "old_log_probs"),
                *("advantage", "model_version", "group_id", "metrics", "enqueued_at"),
            ),
            "trl.experimental.async_grpo.async_grpo_trainer:RolloutWorkerProtocol": (
                *("rollout_buffer", "metrics_queue", "start", "stop", "update_model_version"),
                "check_health",
            ),
            "trl.experimental.async_grpo.async_grpo_trainer:WeightTransferProtocol": (
                *("init_weight_transfer", "pause", "send_weights", "resume", "destroy"),
            ),
            "trl.experimental.async_grpo:AsyncGRPOTrainer": ("rollout_worker", "weight_transfer"),
            "trl.experimental.async_grpo:AsyncGRPOConfig": ("max_staleness", "token_budget"),
        },
    ),
    "trl_rollout": TrainerVersion(
        "trl",
        "1.16.0",
        uses={
            "trl:GRPOTrainer": ("rollout_func",),
            "trl:GRPOConfig": (
                *("num_generations", "temperature", "use_vllm"),
                "vllm_importance_sampling_correction",
            ),
        },
    ),
    "verl": TrainerVersion(
        "verl",
        "0.9.1",
        uses={
            "verl.experimental.agent_loop:AgentLoopOutput": (
                *("prompt_ids", "response_ids", "response_mask", "response_logprobs"),
                *("reward_score", "num_turns", "metrics", "extra_fields", "as_dict"),
            ),
            "verl.trainer.ppo.checkpoint_callback:CheckpointCallback": ("config", "on_save"),
            "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync": (
                *("max_off_policy_threshold", "sample"),
            ),
            "verl.utils.tensordict_utils:list_of_dict_to_tensordict": ("list_of_dicts",),
            "transfer_queue:kv_batch_put": ("keys", "partition_id", "fields", "tags"),
            "transfer_queue:kv_put": ("key", "partition_id", "tag"),
        },
    ),
}
"""By the name of the adapter's module."""


def check(adapter: str) -> None:
    """Make sure that an adapter fits the installed version of its trainer.

    Raises:
        ConfigurationError: it is not installed, or lacks a field or parameter that is used.
        ValueError: there is no such adapter.
    """
    if (tested := TRAINERS.get(adapter)) is None:
        raise ValueError(f"no adapter {adapter!r}; there are {', '.join(sorted(TRAINERS))}")
    try:
        installed = version(tested.package)
    except PackageNotFoundError:
        raise ConfigurationError(
            f"hermes_plugins.trainers.{adapter} needs {tested.package}: "
            f"pip install '{tested.requirement}'"
        ) from None
    if changes := missing(tested):
        raise ConfigurationError(
            f"{tested.package} {installed} does not fit hermes_plugins.trainers.{adapter}, which "
            f"was tested with {tested.version}: {'; '.join(changes)}. "
            f"Install '{tested.requirement}'"
        )
    if installed != tested.version:
        logger.warning(
            "%s %s is installed; hermes_plugins.trainers.%s was tested with %s",
            tested.package,
            installed,
            adapter,
            tested.version,
            extra={"action": "trainer_untested"},
        )


def missing(tested: TrainerVersion) -> list[str]:
    """What the adapter uses and the installed package has not, one sentence each."""
    changes = []
    for path, names in tested.uses.items():
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            changes.append(f"{path} cannot be imported ({error})")
            continue
        has = _names(found)
        lacks = [each for each in names if each not in has]
        if lacks:
            changes.append(f"{name} has no {', '.join(lacks)}; it has {', '.join(sorted(has))}")
    return changes


def _names(found: object) -> frozenset[str]:
    """Fields, methods and parameters of a type, or parameters of a function."""
    try:
        names = {*inspect.signature(found).parameters} if callable(found) else set[str]()
    except (TypeError, ValueError):
        names = set[str]()  # written in C
    if not isinstance(found, type):
        return frozenset(names)
    for base in found.__mro__[:-1]:
        names |= {*vars(base), *vars(base).get("__annotations__", ())}
    return frozenset(name for name in names if not name.startswith("_"))
