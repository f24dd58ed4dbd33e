"""Jobs and records by the thousand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from hermes_queue import Message, ScoredTrajectory, TokenSequence, TrajectoryJob, make_ids
from hermes_queue.bodies.codec import encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import identity

RUN = "bench"
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
"""Of gsm8k."""
LEASE_S = 600.0


def jobs(
    count: int, *, group_size: int, env: str, item: dict[str, Any], run: str = RUN, **fields: Any
) -> Iterator[TrajectoryJob]:
    """The jobs of a run: `count` of them, in groups, all with the same item."""
    for number in range(count):
        instance, sample = f"row-{number // group_size}", number % group_size
        group_id, trajectory_id = make_ids(run, instance, sample)
        yield TrajectoryJob(
            run_id=run,
            group_id=group_id,
            trajectory_id=trajectory_id,
            sample_index=sample,
            group_size=group_size,
            env=env,
            instance_id=instance,
            item=item,
            **fields,
        )


def record(
    job: TrajectoryJob, *, tokens: int, words: int, messages: int = 1, sampled: float = 1.0
) -> ScoredTrajectory:
    """A trajectory with so many tokens and so many words of six letters in its messages.

    A part `sampled` of the tokens is trained on, in spans. Ids and logprobs are random, and so
    compress worse than real ones.
    """
    dice = random.Random(job.trajectory_id)
    mask = tuple(int(n % 1000 < 1000 * sampled) for n in range(tokens))
    sequence = TokenSequence(
        ids=tuple(dice.randrange(150_000) for _ in mask),
        loss_mask=mask,
        logprobs=tuple(-dice.random() if trained else 0.0 for trained in mask),
    )
    texts = [
        " ".join(f"{dice.randrange(10**6):x}" for _ in range(words // messages))
        for _ in range(messages)
    ]
    return ScoredTrajectory(
        **identity(job),
        attempt=1,
        epoch=1,
        status="completed",
        stop_reason="submitted",
        score=float(job.sample_index % 2),
        messages=tuple(
            Message(role="assistant" if n % 2 else "user", content=text)
            for n, text in enumerate(texts, 1)
        ),
        sequences=(sequence,),
    )


def publish(ledger: Ledger, made: list[TrajectoryJob], records: list[ScoredTrajectory]) -> None:
    """Put finished records of jobs into the stream, as workers do it, one by one."""
    enqueue(made, ledger=ledger)
    for one in records:
        ledger.begin(one.trajectory_id, 1, owner="bench", lease_s=LEASE_S, nonce=one.trajectory_id)
        ledger.publish(one, encode_record(one), owner="bench", finished_ttl_s=3600)
