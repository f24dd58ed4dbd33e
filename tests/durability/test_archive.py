"""Workers keep what they delete from Redis, without being told to."""

from __future__ import annotations

from worker_process import wait_until

import hermes_queue


async def test_what_a_worker_trims_is_in_the_archive(factory, start_worker, tmp_path):
    archive = tmp_path / "kept"
    start_worker(
        concurrency=2,
        HERMES_QUEUE_RESULTS_RETENTION_S="0",
        HERMES_QUEUE_RESULTS_TRIM_S="0.2",
        HERMES_QUEUE_ARCHIVE_DIRECTORY=str(archive),
    )
    factory.enqueue(2, seconds=0)
    url = factory.ledger.url
    seen = []
    async for group in hermes_queue.consume("trainer", url=url, run="run"):
        seen.append(group.members)
        await group.ack()
        if len(seen) == 2:
            break
    client = factory.ledger.client
    wait_until("all is trimmed", lambda: client.xlen("hq:results") == 0)
    assert client.keys("hq:body:*") == []
    kept = [g.members for g in hermes_queue.replay(url=url, archive=archive)]
    assert sorted(kept, key=str) == sorted(seen, key=str)
