"""A TRL trainer of the tiny model on a feed, for tests that kill it.

    trl_process.py sync|async DIRECTORY --steps 6 [--kill POINT] [--wait FILE] [--vllm]

DIRECTORY/model is what it begins with, DIRECTORY/out its checkpoints, from the newest of which it
goes on. It kills itself with SIGKILL at POINT: `trained:3` (journaled, no checkpoint yet) or
`checkpoint:4` (written, not acknowledged). Each checkpoint has a file of its own, `witness.json`:
the sampler's logprobs of every row whose loss was taken for its weights. What the trainer logged is
in DIRECTORY/log.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint

from hermes_plugins.trainers.trl_async import NoWeightTransfer, QueueWorker
from hermes_plugins.trainers.trl_rollout import QueueRollout, score
from hermes_queue.trainers.feed import Feed

GROUP_SIZE, GROUPS_PER_STEP = 4, 2
ROWS_PER_STEP = GROUP_SIZE * GROUPS_PER_STEP


class KilledFeed(Feed):
    """Dies on purpose."""

    def __init__(self, kill: str, wait: Path | None, **options: Any) -> None:
        super().__init__("trainer", group_size=GROUP_SIZE, min_std=None, **options)
        self._kill, self._wait = kill, wait

    def take(self, groups: int, *, timeout_s: float | None = None) -> Any:
        while self._wait is not None and self._wait.exists():
            time.sleep(0.05)
        return super().take(groups, timeout_s=timeout_s)

    def trained(self, step: int, groups: Any) -> None:
        super().trained(step, groups)
        self._passes(f"trained:{step}")

    def saved(self, step: int) -> None:
        self._passes(f"checkpoint:{step}")
        super().saved(step)

    def _passes(self, point: str) -> None:
        if point == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)


def on_a_cpu() -> None:
    """Replace what AsyncGRPOTrainer has for GPUs alone: a kernel for attention, a peak of FLOPs."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        _mask: Any,
        *,
        scaling: Any = None,
        **tree: Any,
    ) -> tuple[Any, None]:
        repeats = query.shape[1] // key.shape[1]
        queries = query[0].transpose(0, 1)
        index = tree["tree_kv_index"]
        keys = key[0].transpose(0, 1)[index].repeat_interleave(repeats, 1)
        values = value[0].transpose(0, 1)[index].repeat_interleave(repeats, 1)
        starts, paths = tree["tree_cu_seqlens_q"].tolist(), tree["tree_cu_seqlens_k"].tolist()
        out = torch.empty_like(queries)
        for n in range(len(starts) - 1):
            q = queries[starts[n] : starts[n + 1]].transpose(0, 1)
            k, v = (x[paths[n] : paths[n + 1]].transpose(0, 1) for x in (keys, values))
            ends = torch.arange(k.shape[1])[None] <= (
                torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
            )
            weights = (q @ k.transpose(1, 2) * scaling).masked_fill(~ends, float("-inf"))
            out[starts[n] : starts[n + 1]] = (weights.softmax(-1) @ v).transpose(0, 1)
        return out.unsqueeze(0), None

    packing.tree_attention = attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None


def witnessed(trainer: Any, rows_of_batch: Any) -> Any:
    """Write beside each checkpoint of `trainer` the rows that are in its weights."""
    rows: list[list[float]] = []
    loss, save = trainer.compute_loss, trainer._save_checkpoint

    def compute_loss(model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        rows.extend(rows_of_batch(inputs))
        return loss(model, inputs, *args, **more)

    def save_checkpoint(model: Any, trial: Any) -> None:
        directory = Path(trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "witness.json").write_text(json.dumps(rows))
        save(model, trial)

    trainer.compute_loss, trainer._save_checkpoint = compute_loss, save_checkpoint
    return rows


def async_rows(inputs: Any) -> list[list[float]]:
    segments = inputs["segment_id"][inputs["token_index"] >= 0]
    logprobs = inputs["old_log_probs"][inputs["token_index"] >= 0]
    return [logprobs[segments == n].tolist() for n in range(int(segments.max()) + 1)]


def sync_rows(inputs: Any) -> list[list[float]]:
    masks = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    pairs = zip(inputs["sampling_per_token_logps"], masks, strict=True)
    return [logprobs[mask.bool()].tolist() for logprobs, mask in pairs]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["sync", "async"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--run", default="rl")
    parser.add_argument("--kill", default="")
    parser.add_argument("--wait", type=Path, help="take no group while this file exists")
    parser.add_argument("--idle", type=float, default=300.0)
    parser.add_argument("--vllm", action="store_true", help="sync: use the sampler's logprobs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = given.directory / "out"
    out.mkdir(exist_ok=True)
    common = {
        "output_dir": str(out),
        "max_steps": given.steps,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "temperature": 1.0,
        "per_device_train_batch_size": GROUP_SIZE,
        "gradient_accumulation_steps": GROUPS_PER_STEP,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    slots = Dataset.from_dict({"prompt": [f"slot {n}" for n in range(64)]})
    model = str(given.directory / "model")
    with KilledFeed(given.kill, given.wait, run=given.run, directory=out) as feed:
        if given.mode == "async":
            trainer, rows = asynchronous(feed, model, slots, common, given.idle)
        else:
            trainer, rows = synchronous(feed, model, slots, common, given)
        if last := get_last_checkpoint(str(out)):
            rows.extend(json.loads(Path(last, "witness.json").read_text()))
        began = time.process_time()
        trainer.train(resume_from_checkpoint=last)
        log = {"history": trainer.state.log_history, "recognised": feed.counts.recognised}
        log["cpu_s"] = time.process_time() - began
    (given.directory / "log.json").write_text(json.dumps(log, indent=1))


def asynchronous(
    feed: Feed, model: str, slots: Dataset, common: dict[str, Any], idle_s: float
) -> tuple[Any, Any]:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    on_a_cpu()
    worker = QueueWorker(feed, idle_timeout_s=idle_s)
    trainer = AsyncGRPOTrainer(
        model,
        reward_funcs=score,
        args=AsyncGRPOConfig(**common, token_budget=0, max_staleness=1_000_000, dtype="float32"),
        train_dataset=slots,
        rollout_worker=worker,
        weight_transfer=NoWeightTransfer(),
        callbacks=[worker.callback],
    )
    return trainer, witnessed(trainer, async_rows)


def synchronous(
    feed: Feed, model: str, slots: Dataset, common: dict[str, Any], given: Any
) -> tuple[Any, Any]:
    from trl import GRPOConfig, GRPOTrainer

    rollout = QueueRollout(feed, idle_timeout_s=given.idle)
    trainer = GRPOTrainer(
        model,
        reward_funcs=score,
        args=GRPOConfig(
            **common, num_generations=GROUP_SIZE, model_init_kwargs={"dtype": "float32"}
        ),
        train_dataset=slots,
        rollout_func=rollout,
        callbacks=[rollout.callback],
    )
    if given.vllm:

        class Served:
            """Where vLLM would get new weights from."""

            def sync_weights(self) -> None:
                pass

        trainer.use_vllm, trainer.vllm_generation = True, Served()
        trainer._last_loaded_step = -1
    return trainer, witnessed(trainer, sync_rows)


if __name__ == "__main__":
    main()
