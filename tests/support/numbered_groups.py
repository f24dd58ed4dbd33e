"""Groups whose tokens say which they are, for trainers whose rows have no name."""

from __future__ import annotations

from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.ledger import Ledger
from hermes_queue.models import TokenSequence


def publish_groups(ledger: Ledger, groups: int) -> None:
    """Groups of two; the first token of a row names the group, the second the member."""
    for n in range(groups):
        jobs = [make_job(instance=f"i{n}", sample=sample, size=2) for sample in range(2)]
        enqueue(ledger, *jobs)
        for job in jobs:
            begin(ledger, job)
            ids, mask = (n, job.sample_index, 7, 8), (0, 0, 1, 1)
            row = TokenSequence(ids=ids, loss_mask=mask, logprobs=(0.0, 0.0, -0.5, -0.25))
            record = make_record(job, float(job.sample_index))
            publish(ledger, record.model_copy(update={"sequences": (row,)}))
