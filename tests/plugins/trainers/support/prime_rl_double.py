"""Stands in for prime-rl, which is in no index: the names that our adapter uses, as documented.

`install` makes them importable. A sample is a dataclass with the documented fields, a micro-batch
is the list of its samples, and the sender writes JSON where prime-rl's writes msgpack. The real
packer is tested by training/test_prime_rl.py, with a checkout.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclasses.dataclass
class TrainingSample:
    """Its per-token fields have one length; prime-rl's packer refuses others, and no advantages."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    advantages: list[float] | None = None


class FileSystemMicroBatchSender:
    """Writes `rollouts/step_<n>/rank_<r>.bin`."""

    def __init__(self, output_dir: Path, data_world_size: int, current_step: int = 0) -> None:
        self.directory = output_dir / "rollouts" / f"step_{current_step}"
        self.ranks = data_world_size

    async def send(self, micro_batch_grid: list[list[Any]]) -> None:
        assert len(micro_batch_grid) == self.ranks
        self.directory.mkdir(parents=True, exist_ok=True)
        for rank, samples in enumerate(micro_batch_grid):
            text = json.dumps([dataclasses.asdict(sample) for sample in samples])
            (self.directory / f"rank_{rank}.bin").write_text(text, encoding="utf-8")


def build_bin_cost(model_config: object) -> object:
    return model_config


def prepare_batch(
    rollouts: list[TrainingSample],
    seq_len: int,
    num_train_workers: int,
    bin_cost: object,
    pad_to_multiple_of: int = 1,
) -> list[list[TrainingSample]]:
    for sample in rollouts:
        assert len(sample.token_ids) <= seq_len
    return [rollouts[rank::num_train_workers] for rank in range(num_train_workers)]


def install() -> None:
    """Make the modules importable, and the version known to us."""
    from hermes_plugins.trainers import versions

    ours = {
        "prime_rl.trainer.batch": (prepare_batch, build_bin_cost),
        "prime_rl.transports.rollouts": (TrainingSample, FileSystemMicroBatchSender),
    }
    for path, members in ours.items():
        for name in (path, path.rpartition(".")[0], "prime_rl"):
            sys.modules.setdefault(name, ModuleType(name))
        for member in members:
            setattr(sys.modules[path], member.__name__, member)
    tested = versions.TRAINERS["prime_rl"].version
    versions.version = lambda _: tested  # type: ignore[attr-defined]
