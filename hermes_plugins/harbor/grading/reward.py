"""The reward that tests leave: reward.json, else reward.txt, in /logs/verifier."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.archives import ROOT
from hermes_queue.sandbox.context import SlotContext

FOLDER = "/logs/verifier"
MAX_BYTES = 1 << 20
MAX_KEYS = 1000
MAIN_KEY = "reward"

_SHOW = f"""\
for name in json txt; do
  file={FOLDER}/reward.$name
  if [ -e "$file" ] || [ -L "$file" ]; then
    [ -f "$file" ] && [ ! -L "$file" ] && [ ! -L {FOLDER} ] && [ ! -L /logs ] || exit 66
    echo "$name"; exec head -c {MAX_BYTES + 1} -- "$file"
  fi
done
exit 67
"""


@dataclass(frozen=True, slots=True)
class Reward:
    """What the tests gave."""

    score: float
    rewards: Mapping[str, float]
    """All keys, if there are several."""


class NoReward(Exception):
    """No reward can be used; the message says why."""


async def read_reward(context: SlotContext) -> Reward:
    """Read the reward; nothing may run in the slot any more.

    Raises:
        NoReward: there is none, or it is a link, too large, or no finite number.
        SandboxError: the sandbox could not answer.
    """
    result = await context.run(
        _SHOW, cwd="/", user=ROOT, timeout_s=60.0, max_output_bytes=MAX_BYTES * 2
    )
    if result.timed_out:
        raise SandboxError(f"{FOLDER} did not answer")
    if result.exit_code == 66:
        raise NoReward("the reward file is no regular file")
    if not result.ok:
        raise NoReward("the tests wrote no reward")
    name, _, content = result.stdout.partition(b"\n")
    if len(content) > MAX_BYTES:
        raise NoReward(f"the reward file has more than {MAX_BYTES} bytes")
    return parse(name.decode(), content)


def parse(kind: str, content: bytes) -> Reward:
    """The reward in the content of reward.json (`kind` "json") or reward.txt ("txt").

    Raises:
        NoReward: it is no finite number, and no mapping of names to finite numbers.
    """
    text = content.decode(errors="replace").strip()
    try:
        value = json.loads(text) if kind == "json" else float(text)
    except (ValueError, RecursionError):
        raise NoReward(f"reward.{kind} holds {text[:100]!r}, no reward") from None
    if not isinstance(value, dict):
        return Reward(_finite(value, kind), {})
    if not value or len(value) > MAX_KEYS:
        raise NoReward(f"reward.{kind} has {len(value)} keys")
    rewards = {name: _finite(each, kind) for name, each in value.items()}
    score = rewards.get(MAIN_KEY, mean(rewards.values()))
    return Reward(score, rewards if len(rewards) > 1 or MAIN_KEY not in rewards else {})


def mean(values: Collection[float]) -> float:
    """The mean of finite numbers, even if their sum is too large for a float."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def _finite(value: object, kind: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoReward(f"reward.{kind} holds {value!r:.100}, no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NoReward(f"reward.{kind} holds {value!r:.100}, no finite number")
    return number
