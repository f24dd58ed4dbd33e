"""What dies, comes back, and what the trainer is given meanwhile."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest
from atropos_api import Trainer, call, provenance
from sink_process import SinkProcess

pytestmark = pytest.mark.xdist_group("sinks")
"""One process imports pyarrow, and forks sinks and Atropos servers."""


def queue_size(api) -> int:
    return int(call(api.port, "GET", "/status")["queue_size"])


@pytest.mark.parametrize("moment", ["registered", "begun", "queued", "taken"])
async def test_a_trainer_that_starts_again_is_given_everything_once(
    api, put, start, ledger, moment
):
    ids = [put("one"), put("two"), put("three"), put("four")]
    sink = start()
    old = Trainer(api)
    old.register()
    got = []
    if moment != "registered":
        assert old.batch() is None
    if moment in ("queued", "taken"):
        await sink.until(lambda: queue_size(api) == 2)
    if moment == "taken":
        got += provenance(await old.next_batch())
    new = Trainer(api)
    new.register()
    while len(got) < 16:
        got += provenance(await new.next_batch())
    assert got == [*chain(*ids)]
    await sink.until(lambda: sink.counts.acknowledged == 4)


@pytest.mark.parametrize("moment", ["unregistered", "registered", "begun", "queued"])
async def test_a_server_that_dies_is_given_again_what_no_trainer_had(
    api, put, start, ledger, moment
):
    first, second = put("one"), put("two")
    sink = start()
    trainer = Trainer(api)
    if moment != "unregistered":
        trainer.register()
    if moment in ("begun", "queued"):
        assert trainer.batch() is None
        await sink.until(lambda: sink.counts.registrations)
    if moment == "queued":
        await sink.until(lambda: queue_size(api) == 2)
    api.restart()
    trainer.begin()
    assert provenance(await trainer.next_batch()) == first + second
    await sink.until(lambda: sink.counts.acknowledged == 2)


async def test_a_server_that_dies_after_it_formed_a_batch_is_given_that_batch_again(
    api, trainer, put, start
):
    ids = put("one") + put("two")
    trainer.begin()
    sink = start(settle_s=60.0)
    assert provenance(await trainer.next_batch()) == ids
    await sink.until(lambda: sink.sink._journal.taken)
    api.restart()
    trainer.begin()
    assert provenance(await trainer.next_batch()) == ids
    assert (sink.counts.sent_again, sink.counts.acknowledged) == (2, 0)
    sink.task.cancel()  # a stop would wait until the batch has settled
    await asyncio.wait({sink.task})


async def test_what_has_arrived_is_not_sent_again_to_a_new_server(api, trainer, put, start):
    put("one"), put("two")
    trainer.begin()
    sink = start()
    await trainer.next_batch()
    await sink.until(lambda: sink.counts.acknowledged == 2)
    api.restart()
    third = put("three") + put("four")
    trainer.begin()
    assert provenance(await trainer.next_batch()) == third
    assert sink.counts.sent_again == 0


async def test_a_trainer_that_resets_the_server_is_given_again_what_it_wiped(
    api, trainer, put, start
):
    ids = put("one") + put("two")
    trainer.begin()
    sink = start()
    await sink.until(lambda: queue_size(api) == 2)
    call(api.port, "GET", "/reset_data")
    trainer.begin()
    assert provenance(await trainer.next_batch()) == ids
    await sink.until(lambda: sink.counts.acknowledged == 2)


async def test_a_new_server_with_another_batch_size_is_served_by_that(api, put, start):
    ids = [put(f"g{n}") for n in range(4)]
    old, new = Trainer(api), Trainer(api, batch_size=16)
    old.begin()
    sink = start()
    await sink.until(lambda: queue_size(api) == 2)
    api.restart()
    new.begin()
    assert provenance(await new.next_batch()) == [*chain(*ids)]


@pytest.mark.fleet
async def test_a_killed_sink_leaves_nothing_to_repeat_while_the_server_lives(
    api, trainer, put, start, ledger
):
    ids = put("one") + put("two")
    trainer.begin()
    with SinkProcess(ledger, "sink", "atropos", "--url", api.url) as first:
        while queue_size(api) < 2:
            assert first.poll() is None
            await asyncio.sleep(0.05)
    more = put("three") + put("four")
    sink = start()
    got = provenance(await trainer.next_batch()) + provenance(await trainer.next_batch())
    assert got == ids + more
    await sink.until(lambda: sink.counts.acknowledged == 4)
    assert sink.counts.adopted == 2


async def test_a_sink_that_was_stopped_accounts_for_what_it_left_on_the_server(
    api, trainer, put, start, ledger
):
    ids = put("one")
    trainer.begin()
    first = start()
    await first.until(lambda: queue_size(api) == 1)
    await first.stop()
    more = put("two")
    second = start()
    assert provenance(await trainer.next_batch()) == ids + more
    await second.until(lambda: second.counts.acknowledged == 2)
    assert (second.counts.posts, second.counts.registrations) == (1, 0)


async def test_an_outage_of_redis_repeats_nothing(api, trainer, put, start, redis_server):
    ids = put("one") + put("two")
    trainer.begin()
    sink = start()
    await sink.until(lambda: queue_size(api) == 2)
    redis_server.kill9()
    assert provenance(await trainer.next_batch()) == ids
    redis_server.start()
    await sink.until(lambda: sink.counts.acknowledged == 2)
    more = put("three") + put("four")
    assert provenance(await trainer.next_batch()) == more
