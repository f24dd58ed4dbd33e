"""The programs of the live tests, and jobs that run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records import make_job
from trail_env import row

from hermes_queue.agent.programs.catalogue import find_program, pack
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger

_HERMES = """\
[programs.hermes-terminal]
like = 'hermes-agent'
run = '{agent}/bin/hermes -t terminal -z "$(cat {task})"'
"""


def programs_in(directory: Path) -> dict[str, str]:
    """By name, what `program` is set to; `directory` gets the definitions.

    hermes-agent is given one tool of its sixteen, which keeps its prompt short.
    """
    file = directory / "programs.toml"
    file.write_text(_HERMES)
    return {"mini-swe-agent": "mini-swe-agent", "hermes-agent": str(file)}


def enqueue_trails(
    ledger: Ledger,
    program: str,
    numbers: Sequence[int],
    *,
    run_id: str,
    url: str,
    params: dict[str, Any],
    sampling: dict[str, Any],
    max_turns: int,
) -> None:
    """The trails of these numbers, each followed once by `program` with the model at `url`."""
    packed = pack(find_program(program))
    agent = {
        "kind": "command",
        "model": "tiny",
        "base_url": url,
        "params": {"program": packed.reference, **params},
        "sampling": sampling,
    }
    limits = {"max_turns": max_turns, "agent_timeout_s": 600}
    jobs = [
        make_job(
            run_id, item["instance_id"], env="trail_env:ENV", item=item, agent=agent, limits=limits
        )
        for item in map(row, numbers)
    ]
    enqueue(jobs, ledger=ledger, items=packed.items)
