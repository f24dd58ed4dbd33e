"""Selection of a program's conversations whose tokens become part of a dataset.

Replies that a program never got are in no sequence of a record, so no selection includes them.
"""

from __future__ import annotations

from collections.abc import Collection

from hermes_queue.models import BranchLabel, ScoredTrajectory


def of_branches(record: ScoredTrajectory, labels: Collection[BranchLabel]) -> ScoredTrajectory:
    """The record with only the token sequences of these branches.

    Our own loop has no branches: all of its sequences are `main`.
    """
    kept = tuple(each for each in record.sequences or () if each.branch in labels)
    if len(kept) == len(record.sequences or ()):
        return record
    return record.model_copy(update={"sequences": kept})
