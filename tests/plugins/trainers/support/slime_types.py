"""slime's types as its documentation and source describe them, for machines without slime.

slime is not on PyPI. With a checkout in `SLIME_SRC` its own types take their place.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    """The fields that the adapter sets."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Any) -> Any:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


Sample.Status = Status  # type: ignore[attr-defined]


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@contextmanager
def slime_types() -> Iterator[bool]:
    """Makes slime's modules importable; whether they are those of a checkout."""
    source = os.environ.get("SLIME_SRC")
    before = dict(sys.modules)
    if source:
        sys.path.insert(0, source)
    else:
        types, base = ModuleType("slime.utils.types"), ModuleType("slime.rollout.base_types")
        types.Sample = Sample  # type: ignore[attr-defined]
        base.RolloutFnTrainOutput = RolloutFnTrainOutput  # type: ignore[attr-defined]
        packages = {name: ModuleType(name) for name in ("slime", "slime.utils", "slime.rollout")}
        sys.modules |= packages | {types.__name__: types, base.__name__: base}
    try:
        importlib.import_module("slime.utils.types")
        yield bool(source)
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "slime"]:
            if name not in before:
                del sys.modules[name]
        if source:
            sys.path.remove(source)


NORMALIZATION = {
    **dict.fromkeys(("grpo", "gspo", "cispo"), "scaled"),
    "reinforce_plus_plus_baseline": "centred",
    **dict.fromkeys(("ppo", "reinforce_plus_plus"), "raw"),
}
"""What slime's `_post_process_rewards` does to rewards, by the estimator of advantages."""


def normalization() -> dict[str, str]:
    """`NORMALIZATION`, read from slime's source where there is a checkout."""
    if not (source := os.environ.get("SLIME_SRC")):
        return NORMALIZATION
    text = (Path(source) / "slime" / "ray" / "rollout.py").read_text()
    text = text[text.index("def _post_process_rewards") :]
    centred, scaled = re.findall(r"advantage_estimator in (\[[^]]*\])", text)[:2]
    found = dict.fromkeys(NORMALIZATION, "raw") | dict.fromkeys(
        ast.literal_eval(centred), "centred"
    )
    return found | dict.fromkeys(ast.literal_eval(scaled), "scaled")
