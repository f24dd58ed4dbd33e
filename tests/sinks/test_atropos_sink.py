"""Our groups through the real Atropos API server to a trainer."""

from __future__ import annotations

from atropos_api import provenance


async def test_a_trainer_gets_the_groups_and_then_they_are_acknowledged(
    trainer, put, start, ledger
):
    first, second = put("one"), put("two")
    trainer.begin()
    sink = start()
    batch = await trainer.next_batch()
    assert provenance(batch) == first + second
    await sink.until(lambda: sink.counts.acknowledged == 2)
    assert ledger.client.xpending("hq:results", "atropos")["pending"] == 0
