"""The disk of the spool is full."""

from __future__ import annotations

import pytest
from full_disk import on_a_full_disk


@pytest.mark.fleet
def test_a_record_that_the_disk_has_no_room_for_is_published_from_memory(
    factory, start_worker, tmp_path
):
    spool = tmp_path / "spool"
    spool.mkdir()
    prefix = on_a_full_disk(spool)
    worker = start_worker(concurrency=1, prefix=prefix, HERMES_QUEUE_PATHS_SPOOL=str(spool))
    factory.enqueue(1, seconds=0)
    [record] = factory.wait_done()
    assert record.score is not None
    worker.wait_for_log("No space left on device")
    worker.wait_for_log("is published from memory")
