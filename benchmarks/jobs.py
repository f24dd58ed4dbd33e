"""Jobs by the thousand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes_queue import TrajectoryJob, make_ids

RUN = "bench"


def jobs(
    count: int, *, group_size: int, env: str, item: dict[str, Any], **fields: Any
) -> Iterator[TrajectoryJob]:
    """The jobs of run `RUN`: `count` of them, in groups, all with the same item."""
    for number in range(count):
        instance, sample = f"row-{number // group_size}", number % group_size
        group_id, trajectory_id = make_ids(RUN, instance, sample)
        yield TrajectoryJob(
            run_id=RUN,
            group_id=group_id,
            trajectory_id=trajectory_id,
            sample_index=sample,
            group_size=group_size,
            env=env,
            instance_id=instance,
            item=item,
            **fields,
        )
