"""Finished groups in the stream for a trainer's tests, and how they are named there."""

from __future__ import annotations

from collections.abc import Iterable

from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record

from hermes_queue.ledger import Ledger
from hermes_queue.models import TrajectoryGroup, make_ids


def publish(
    ledger: Ledger,
    *instances: str,
    scores: tuple[float | None, ...] = (0.0, 1.0),
    policy: str | None = None,
    evaluation: bool = False,
    run: str = "run",
    env: str = "gsm8k",
    tokens: bool = True,
    lane: str = "train",
) -> None:
    for name in instances:
        jobs = [make_job(run, name, i, len(scores), env=env, lane=lane) for i in range(len(scores))]
        enqueue(ledger, *jobs)
        for job, score in zip(jobs, scores, strict=True):
            begin(ledger, job)
            record = make_record(job, score, policy=policy)
            change = {"evaluation": evaluation} | ({} if tokens else {"sequences": ()})
            publish_record(ledger, record.model_copy(update=change))


def pending(ledger: Ledger) -> int:
    return ledger.client.xpending("hq:results", "trainer")["pending"]


def names(groups: Iterable[TrajectoryGroup]) -> str:
    return "".join(group.instance_id for group in groups)


def group_id(instance: str, run: str = "run") -> str:
    return make_ids(run, instance, 0)[0]
