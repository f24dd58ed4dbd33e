"""Token ids and labels, for supervised fine-tuning without a tokenizer.

`input_ids` are the ids that the model server returned, `labels` the same ids where the policy
sampled them and -100 elsewhere, at the same positions: TRL's SFTTrainer and other trainers on
transformers shift them themselves. Text is never encoded again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import Field

from hermes_queue.models import ScoredTrajectory, TokenSequence
from hermes_queue.sinks.base import Format, SinkOptions
from hermes_queue.sinks.datasets.lines import DatasetRow, LinesSink, NotRepresentable
from hermes_queue.trainers.rows import is_in_range, labels_of


class TokenOptions(SinkOptions):
    """Options of `tokens`."""

    max_length: int | None = Field(
        default=None,
        ge=2,
        description="tokens: omit trajectories of which a sequence has more tokens than this, "
        "which a trainer would cut off.",
    )


class TokensSink(LinesSink):
    """Appends a row for each trained sequence to `path` (`*.jsonl`). See `LinesSink`.

    The rows of a trajectory are written together.
    """

    def __init__(self, path: Path, options: TokenOptions | None = None) -> None:
        limit = options.max_length if options else None
        super().__init__(path, partial(rows, max_length=limit), kind="tokens")


def rows(trajectory: ScoredTrajectory, *, max_length: int | None = None) -> list[DatasetRow]:
    """A row for each sequence of the trajectory in which a token is trained.

    Turns that several sequences share are trained in one of them only, so a sequence may have
    nothing left to train.

    Raises:
        NotRepresentable: there is no such sequence, one is longer than `max_length`, or one is
            not valid.
    """
    sequences = trajectory.sequences or ()
    if not sequences:
        raise NotRepresentable("no tokens")
    for sequence in sequences:
        _check(sequence)
    trained = [(n, each) for n, each in enumerate(sequences) if 1 in each.loss_mask]
    if not trained:
        raise NotRepresentable("nothing trained")
    if max_length is not None and any(len(each.ids) > max_length for _, each in trained):
        raise NotRepresentable("too long")
    return [_row(trajectory, number, sequence) for number, sequence in trained]


def _check(sequence: TokenSequence) -> None:
    if len(sequence.ids) != len(sequence.loss_mask):
        raise NotRepresentable("tokens and mask of different lengths")
    if not is_in_range(sequence):
        raise NotRepresentable("a token id or a mask out of range")


def _row(trajectory: ScoredTrajectory, number: int, sequence: TokenSequence) -> DatasetRow:
    return {
        "input_ids": list(sequence.ids),
        "labels": labels_of(sequence),
        "trajectory_id": trajectory.trajectory_id,
        "sequence": number,
        "branch": sequence.branch,
        "group_id": trajectory.group_id,
        "run_id": trajectory.run_id,
        "env": trajectory.env,
        "instance_id": trajectory.instance_id,
        "model": trajectory.agent.model or trajectory.agent.kind,
        "score": trajectory.score,
    }


FORMAT = Format(
    help="Token ids and labels for supervised fine-tuning, one sequence per line of the "
    "JSON-lines file OUT: exactly the tokens that the model server returned.",
    open=lambda out, options, choice: TokensSink(out, options),
    options=TokenOptions,
)
