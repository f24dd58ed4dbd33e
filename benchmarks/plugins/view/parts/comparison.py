"""Samples of a group side by side: `hermes_plugins.view.compare`, beside `difflib` of the steps.

16 samples of 100 tool calls each, of 80 different ones, with 2 KB of output and 32,000 token ids.
`hostile` is 16 samples of 2,000 calls of two kinds, for which `difflib` compares one sample alone
with the reference. The other side aligns lists of equal texts and does nothing else: no records
are read, and neither tests, patches nor tokens are compared.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import partial
from typing import Any

from benchmarks.measuring import Cases, Part, Turn, metered
from hermes_plugins.view.compare import compare
from hermes_plugins.view.compare.alignment import common
from hermes_queue.wire.arrays import PackedArray, packed_bytes

SAMPLES, CALLS, TOKENS = 16, 100, 32_000
HOSTILE_CALLS = 2000


def sample(rng: random.Random, number: int, commands: Sequence[str]) -> dict[str, Any]:
    """A raw record, as it is unpacked from a body."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair it."}]
    for place, command in enumerate(commands):
        function = {"name": "terminal", "arguments": json.dumps({"command": command})}
        messages.append({"role": "assistant", "tool_calls": [{"id": f"{place}"}]})
        messages[-1]["tool_calls"][0]["function"] = function
        output = "[exit code 0]\n" + "x" * 2000
        messages.append({"role": "tool", "tool_call_id": f"{place}", "content": output})
    ids = [*range(1000), *(rng.randrange(150_000) for _ in range(TOKENS - 1000))]
    sequence: dict[str, PackedArray[Any]] = {
        "ids": PackedArray("i", packed_bytes("i", ids)),
        "loss_mask": PackedArray("B", b"\1" * TOKENS),
        "logprobs": PackedArray("f", bytes(4 * TOKENS)),
    }
    return {
        "trajectory_id": f"r.g.{number}",
        "score": float(number % 2),
        "messages": messages,
        "sequences": [sequence],
        "report": {"patch": f"--- a.py\n+++ a.py\n@@ -1 +1 @@\n-a\n+{number}\n"},
    }


def ours(records: Sequence[dict[str, Any]]) -> Turn:
    """One comparison of all that is compared."""
    with metered() as meter:
        found = compare(records)
    return meter.turn(1, facts={"answer_bytes": len(json.dumps(found)), "samples": len(records)})


def aligned(steps: Sequence[Sequence[str]], *, by_difflib: bool) -> Turn:
    """The steps alone, each sample with the first one."""
    shared = 0
    with metered() as meter:
        for other in steps[1:]:
            if by_difflib:
                matcher = SequenceMatcher(None, steps[0], other, autojunk=False)
                shared += sum(block.size for block in matcher.get_matching_blocks())
            else:
                shared += len(common(steps[0], other))
    return meter.turn(1, facts={"shared_steps": shared})


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """A usual group, and one that repeats itself."""
    rng = random.Random(18)
    looks = [f"sed -n {n},{n + 40}p src/part{n % 7}.py" for n in range(60)]
    kinds = [*looks, *["python -m pytest -x"] * 20]
    usual = [rng.choices(kinds, k=CALLS) for _ in range(SAMPLES)]
    hostile = [rng.choices(["a", "b"], k=max(2, int(HOSTILE_CALLS * scale))) for _ in usual]
    records = [sample(rng, n, commands) for n, commands in enumerate(usual)]
    spoilt = [sample(rng, n, commands) for n, commands in enumerate(hostile)]
    yield {
        "16 x 100": {
            "difflib": partial(aligned, usual, by_difflib=True),
            "ours, steps alone": partial(aligned, usual, by_difflib=False),
            "ours": partial(ours, records),
        },
        "hostile": {
            "difflib, 1 of 15": partial(aligned, hostile[:2], by_difflib=True),
            "ours, steps alone": partial(aligned, hostile, by_difflib=False),
            "ours": partial(ours, spoilt),
        },
    }


PART = Part("group", cases)
