"""A trainer whose weights are the list of groups that it was trained on.

    trainer_process.py URL DIRECTORY STEPS KILL

It saves every second step, resumes from its newest checkpoint, and kills itself with SIGKILL at
KILL: `taken:3`, `trained:3` or `checkpoint:4` (written, not reported yet); "" = never.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from hermes_queue.trainers.feed import Feed


def main() -> None:
    """Train."""
    url, directory, steps, kill = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

    def passes(point: str) -> None:
        if point == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = directory / "checkpoint.json"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "groups": []}
    with Feed("trainer", run="run", directory=directory, group_size=2, url=url) as feed:
        assert feed.resume(state["step"]) == len(state["groups"])
        for step in range(state["step"] + 1, steps + 1):
            groups = feed.take(1)
            passes(f"taken:{step}")
            state = {"step": step, "groups": state["groups"] + [g.group_id for g in groups]}
            feed.trained(step, groups)
            passes(f"trained:{step}")
            if step % 2 == 0:
                draft = directory / "checkpoint.tmp"
                draft.write_text(json.dumps(state))
                draft.rename(checkpoint)
                passes(f"checkpoint:{step}")
                feed.saved(step)
        print(json.dumps({"recognised": feed.counts.recognised}))


if __name__ == "__main__":
    main()
