"""Facts about groups and their members that the ledger still holds."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.models import GroupPolicy, TrajectoryJob
from hermes_queue.wire.ids import group_of, run_of, sample_of
from hermes_queue.wire.names import NAME_CHARACTERS
from hermes_queue.wire.parameters import ID_CHARACTERS


def dropped_groups(ledger: Ledger, group_ids: Sequence[str]) -> list[str]:
    """The groups of `group_ids` that were closed and, because of their policy, not published."""
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        for group_id in group_ids:
            pipe.hexists(ledger.key(f"group:{group_id}"), "dropped")
        return [g for g, gone in zip(group_ids, pipe.execute(), strict=True) if gone]


def stand_in_job(ledger: Ledger, trajectory_id: str) -> TrajectoryJob:
    """A job made from its ids and its group, in place of one that cannot be read."""
    group_id, index = group_of(trajectory_id), int(sample_of(trajectory_id))
    size, env, instance = ledger.hash_fields(f"group:{group_id}", "size", "env", "instance_id")
    return TrajectoryJob(
        run_id=run_of(trajectory_id),
        group_id=group_id,
        trajectory_id=trajectory_id,
        sample_index=index,
        group_size=int(size or 1),
        env=env[:NAME_CHARACTERS],
        instance_id=instance[:ID_CHARACTERS],
        item={},
        group_policy=GroupPolicy.model_construct(max_refills=index),  # any sample
    )
