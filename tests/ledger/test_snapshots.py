"""Notes of snapshots at a provider, shared through Redis."""

from __future__ import annotations

import logging

from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.snapshots import FleetSnapshots


async def test_a_note_is_found_by_app_and_name_and_the_last_one_stands(ledger):
    notes = FleetSnapshots(ledger)
    for snapshot in ("im-1", "im-2"):
        await notes.save("ap-1", "venv-abc", snapshot, ttl_s=600)
    assert await FleetSnapshots(ledger).load("ap-1", "venv-abc") == "im-2"
    assert await notes.load("ap-2", "venv-abc") is None
    assert await notes.load("ap-1", "venv-abd") is None


async def test_every_note_expires_with_its_snapshot(ledger):
    await FleetSnapshots(ledger).save("ap-1", "venv-abc", "im-1", ttl_s=600)
    keys = list(ledger.client.scan_iter("hq:snapshot:*"))
    assert [0 < ledger.client.ttl(key) <= 600 for key in keys] == [True]


async def test_forgetting_one_that_is_gone_keeps_a_newer_note(ledger):
    notes = FleetSnapshots(ledger)
    await notes.save("ap-1", "venv-abc", "im-2", ttl_s=600)
    await notes.forget("ap-1", "venv-abc", "im-1")
    assert await notes.load("ap-1", "venv-abc") == "im-2"
    await notes.forget("ap-1", "venv-abc", "im-2")
    assert await notes.load("ap-1", "venv-abc") is None


async def test_without_redis_nothing_is_known_and_nothing_fails(redis_server, caplog):
    caplog.set_level(logging.WARNING)
    with redis_server.client(decode_responses=False) as client:
        notes = FleetSnapshots(Ledger(client, prefix="hq:", url=redis_server.url))
        redis_server.kill9()
        await notes.save("ap-1", "venv-abc", "im-1", ttl_s=600)
        await notes.forget("ap-1", "venv-abc", "im-1")
        assert await notes.load("ap-1", "venv-abc") is None
    assert caplog.text.count("snapshot not shared") == 3
