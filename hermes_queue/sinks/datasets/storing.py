"""Groups become rows of a dataset, and one that cannot costs only itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hermes_queue.errors import HermesQueueError
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.sinks.base import DatasetSink
from hermes_queue.sinks.selection import Selection

logger = logging.getLogger(__name__)

NOT_THE_ROWS = (HermesQueueError, OSError, MemoryError)
"""The destination's failures, or the machine's: they end the sink."""


def store(
    sink: DatasetSink, selection: Selection, batch: Sequence[TrajectoryGroup]
) -> tuple[int, dict[str, Exception]]:
    """Write the batch. Returns how many rows are new, and by group id what the format failed on.

    A row that the format fails on is a defect, of ours or of the row: its group goes, so that
    neither the sink nor its neighbours do.
    """
    spoiled: dict[str, Exception] = {}
    chosen: dict[str, list[ScoredTrajectory]] = {}
    for group in batch:
        try:
            chosen.setdefault(group.group_id, []).extend(selection.choose(group))
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the letter
            spoiled[group.group_id] = error
    try:
        return sink.write([row for rows in chosen.values() for row in rows]), spoiled
    except NOT_THE_ROWS:
        raise
    except Exception:
        logger.debug("one of the batch cannot be written: one by one", exc_info=True)
    written = 0
    for group_id, rows in chosen.items():
        try:
            written += sink.write(rows)
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the letter
            spoiled[group_id] = error
    return written, spoiled
