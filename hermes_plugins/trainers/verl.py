"""verl (V1 trainers): groups from the queue in the place of verl's own rollouts.

Three classes share the feed of verl's driver process. The prompts that verl submits are only
slots. When it samples a batch, that many groups are taken, written to TransferQueue and
journaled as of this step. So nothing waits in TransferQueue, whose own checkpoints hold no group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Row, rows_of
from hermes_queue.trainers.sources.policy import announce

_TRACKER = "latest_checkpointed_iteration.txt"
"""File in which verl names its last complete checkpoint, also if it writes in the background."""
_driver: _Driver | None = None


class _Driver:
    """The feed of this process, and the slots that wait for groups."""

    def __init__(self, config: Any) -> None:
        check("verl")
        rollout, given = config.actor_rollout_ref.rollout, config.trainer.v1.sampler.sampler_kwargs
        limit = config.data.max_prompt_length + config.data.max_response_length
        options = {"name": "verl", "directory": config.trainer.default_local_dir, **given}
        fit: dict[str, Any] = {"max_tokens": limit, "temperature": rollout.temperature}
        fit = {name: options.pop(name, value) for name, value in fit.items()}
        self.rows: Callable[[TrajectoryGroup], tuple[Row, ...]]
        self.rows = partial(rows_of, advantage=None, **fit)
        options |= {"check": self.rows, "temperature": fit["temperature"]}
        self.feed = Feed(group_size=rollout.n, **options)
        self.slots: deque[str] = deque()
        self.step = self.offset = 0
        """Of verl, and what our policy versions are ahead of its steps."""

    def begin(self, step: int) -> None:
        """The weights of the step before are in the servers."""
        if not self.step:
            self.feed.resume(step - 1 or None)
        if step > self.step and (now := announce(self.feed.published, step - 1)) is not None:
            self.offset = now - (step - 1)
        self.step = step


class AckOnCheckpoint:
    """`trainer.checkpoint_callback_class`: acknowledges groups when a checkpoint is durable.

    verl makes it first, and it opens the feed with `trainer.v1.sampler.sampler_kwargs`: `run`, and
    what else of `FeedOptions`, and `max_tokens` and `temperature` of `rows_of`, is not verl's.

    Raises:
        ConfigurationError: verl is of another version, or as `Feed`.
    """

    def __init__(self, config: Any) -> None:
        global _driver
        _driver = _Driver(config)
        self._begun: set[int] = set()
        """Steps whose checkpoints this process wrote, or still writes."""

    def on_save(self, *, global_step: int, checkpoint_dir: str, **_: object) -> None:
        """Acknowledge what is in the newest complete checkpoint of this process."""
        self._begun.add(global_step)
        tracker = Path(checkpoint_dir).parent / _TRACKER
        durable = int(tracker.read_text()) if tracker.exists() else -1
        if durable in self._begun:
            _opened().feed.saved(durable)


class QueueAgentLoopManager:
    """`actor_rollout_ref.rollout.agent.agent_loop_manager_class`: takes prompts as slots."""

    @classmethod
    def create(cls, config: Any, **_: object) -> QueueAgentLoopManager:
        """Make one for verl.

        Raises:
            ConfigurationError: verl is configured for what groups of the queue cannot do.
        """
        _opened()
        sampler = config.trainer.v1.sampler.custom_sampler
        if not sampler or sampler["name"] != QueueReplayBuffer.__name__:
            raise ConfigurationError(
                f"set trainer.v1.sampler.custom_sampler.path=pkg://{__name__} and "
                f"trainer.v1.sampler.custom_sampler.name={QueueReplayBuffer.__name__}"
            )
        if config.trainer.val_before_train or config.trainer.test_freq > 0:
            raise ConfigurationError(
                "groups of the queue are for training: set trainer.val_before_train=false and "
                "trainer.test_freq=-1, and evaluate in a run of its own"
            )
        return cls()

    def generate_sequences(self, prompts: Any) -> None:
        """Take the prompts as slots for groups. Never blocks."""
        _opened().slots.extend(prompts["uid"])


class QueueReplayBuffer:
    """`trainer.v1.sampler.custom_sampler`: batches of groups from the queue."""

    def __init__(self, **given: Any) -> None:
        module = import_module("verl.trainer.ppo.v1.replay_buffer")
        # It would judge age by when verl submitted the slot.
        self._buffer = module.ReplayBufferAsync(**{**given, "max_off_policy_threshold": None})

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, Any]:
        """Wait for groups, journal them as of this step, and return verl's batch of them."""
        driver = _opened()
        if len(driver.slots) < batch_size:
            raise ConfigurationError(
                f"verl submitted {len(driver.slots)} prompts and asks for {batch_size}; set "
                f"actor_rollout_ref.rollout.agent.agent_loop_manager_class={__name__}."
                f"{QueueAgentLoopManager.__name__}"
            )
        driver.begin(global_steps)
        filled = {driver.slots.popleft(): group for group in driver.feed.take(batch_size)}
        for uid, group in filled.items():
            _put(uid, group, driver, partition_id)
        batch, metrics = self._buffer.sample(global_steps, partition_id, batch_size)
        if {key.split("_")[0] for key in batch.keys} != filled.keys():
            raise RuntimeError("TransferQueue holds groups that did not come from the queue")
        driver.feed.trained(global_steps, list(filled.values()))
        return batch, metrics


def _opened() -> _Driver:
    if _driver is None:
        raise ConfigurationError(
            f"set trainer.checkpoint_callback_class={__name__}.AckOnCheckpoint"
        )
    return _driver


def _put(uid: str, group: TrajectoryGroup, driver: _Driver, partition: str) -> None:
    """Write the rows of a group, then that it is finished."""
    tq, tensors = import_module("transfer_queue"), import_module("verl.utils.tensordict_utils")
    members = {member.trajectory_id: (n, member) for n, member in enumerate(group.members)}
    keys, fields, tags = [], [], []
    for row in driver.rows(group):
        session, member = members[row.trajectory_id]
        keys.append(f"{uid}_{session}_{row.index}")
        fields.append({**_fields(row, len(member.messages)), "uid": uid})
        # verl counts in its own steps; a row of unknown age counts as fresh.
        step = driver.step - 1 if row.version is None else row.version - driver.offset
        steps = {"global_steps": driver.step, "min_global_steps": step, "max_global_steps": step}
        lengths = {"prompt_len": row.cut, "response_len": len(row.ids) - row.cut}
        tags.append({"status": "success", "seq_len": len(row.ids), **lengths, **steps})
    table = tensors.list_of_dict_to_tensordict(fields)
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=table, tags=tags)
    tq.kv_put(key=uid, partition_id=partition, tag={"status": "finished"})


def _fields(row: Row, turns: int) -> dict[str, Any]:
    """A row as verl's own agent loops write it."""
    loops, torch = import_module("verl.experimental.agent_loop"), import_module("torch")
    fields = loops.AgentLoopOutput(
        prompt_ids=row.ids[: row.cut],
        response_ids=row.ids[row.cut :],
        response_mask=row.mask[row.cut :],
        response_logprobs=row.logprobs[row.cut :],
        reward_score=row.score,
        num_turns=turns,
        metrics={},
        extra_fields={"reward_extra_info": {}, "trajectory_id": row.trajectory_id},
    ).as_dict()
    fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])
    more = {"position_ids": torch.arange(len(row.ids)), "loss_mask": fields["response_mask"]}
    return {**fields, **more, "multi_modal_inputs": {}}
