"""The on-policy loop of docs/sending-jobs.md, killed with SIGKILL at a point of its own choice.

    documented_trainer.py URL DIRECTORY KILL

KILL is `enqueued:2` (jobs are sent, none has run), `sampled:2`, `optimised:2`, `loaded:2` (trained,
the version is not published), `saved:2` (the checkpoint is written, not reported); "" = never. The
number counts calls of one process, but for `saved`, which is a step. Weights are the list of groups
that they were trained on. Jobs run in this process, as soon as they are sent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from ledger_steps import begin, publish
from pages import ROOT, blocks
from records import make_record

import hermes_queue
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.trainers.rows import Row

_STEPS = 4


def main() -> None:
    """Train."""
    url, directory, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    ledger = Ledger(redis.Redis.from_url(url), prefix="hq:", url=url)
    checkpoint = directory / "checkpoint.json"
    passed: Counter[str] = Counter()
    weights: list[str] = []

    def passes(point: str, number: int | None = None) -> None:
        passed[point] += 1
        if kill == f"{point}:{number or passed[point]}":
            os.kill(os.getpid(), signal.SIGKILL)

    def enqueue(**given: Any) -> hermes_queue.Enqueued:
        sent = real_enqueue(**given, url=url)
        passes("enqueued")
        for job in hermes_queue.make_jobs(**given):
            if begin(ledger, job).verdict == "run":
                version = version_of(ledger, job.run_id)
                record = make_record(job, float(job.sample_index), policy_begun=version)
                publish(ledger, record)
        passes("sampled")
        return sent

    def restore() -> int | None:
        if not checkpoint.exists():
            return None
        state = json.loads(checkpoint.read_text())
        weights.extend(state["groups"])
        return int(state["step"])

    def optimise(rows: Sequence[Row]) -> None:
        weights.extend(dict.fromkeys(row.group_id for row in rows))
        passes("optimised")

    def save(step: int) -> None:
        draft = directory / "checkpoint.tmp"
        draft.write_text(json.dumps({"step": step, "groups": weights}))
        draft.rename(checkpoint)
        passes("saved", step)

    made: dict[str, Any] = {}
    [_, loop] = [each.text for each in blocks(ROOT / "docs" / "sending-jobs.md", "python")]
    real_enqueue, hermes_queue.enqueue = hermes_queue.enqueue, enqueue
    exec(loop, made)
    items = [{"instance_id": name, "question": "1+1?", "answer": "#### 2"} for name in "ab"]
    made["train"](
        *("run", directory, lambda step: items, restore, lambda: passes("loaded"), optimise, save),
        **{"steps": _STEPS, "every": 2, "size": 2},
    )


if __name__ == "__main__":
    main()
