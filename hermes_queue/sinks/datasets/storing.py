"""Writes groups as rows of a dataset; a group that cannot become rows does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hermes_queue.errors import HermesQueueError
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.sinks.base import DatasetSink
from hermes_queue.sinks.selection import Selection

logger = logging.getLogger(__name__)

NOT_THE_ROWS = (HermesQueueError, OSError, MemoryError)
"""Failures of the destination or the machine, which end the sink."""


def store(
    sink: DatasetSink, selection: Selection, batch: Sequence[TrajectoryGroup]
) -> tuple[int, dict[str, Exception]]:
    """Write the batch.

    Returns:
        The number of new rows, and the format's error by id of each group that it failed on.

    A row that the format fails on is a defect, in our code or in the row. Its group is dropped,
    so that the sink and the other groups continue.
    """
    spoiled: dict[str, Exception] = {}
    chosen: dict[str, list[ScoredTrajectory]] = {}
    for group in batch:
        try:
            chosen.setdefault(group.group_id, []).extend(selection.choose(group))
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # noqa: BLE001 - any error is reported for its group
            spoiled[group.group_id] = error
    try:
        return sink.write([row for rows in chosen.values() for row in rows]), spoiled
    except NOT_THE_ROWS:
        raise
    except Exception:
        logger.debug("a batch cannot be written; writing its groups one by one", exc_info=True)
    written = 0
    for group_id, rows in chosen.items():
        try:
            written += sink.write(rows)
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # noqa: BLE001 - any error is reported for its group
            spoiled[group_id] = error
    return written, spoiled
