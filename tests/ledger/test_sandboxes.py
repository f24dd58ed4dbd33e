"""Sandboxes in the ledger: leases, turns and who is judged dead."""

from __future__ import annotations

import time

import pytest

from hermes_queue.ledger.fleet.sandboxes import Sandboxes, SandboxRecord
from hermes_queue.sandbox.base import SandboxInfo


def record(name="box", worker="w1", **more):
    return SandboxRecord(name, "far", "host", 1.0, {"worker": worker}, **more)


def info(name="box", worker="w1"):
    return SandboxInfo(name, {"worker": worker}, 1.0)


@pytest.fixture
def sandboxes(ledger):
    return Sandboxes(ledger)


def test_a_record_tells_labels_slots_and_the_rest_of_its_lease(sandboxes):
    sandboxes.renew([record(slots={"s1": "t1"})], lease_s=30)
    [found] = sandboxes.all()
    assert (found.sandbox_id, found.worker, found.slots) == ("box", "w1", {"s1": "t1"})
    assert 0 < found.lease_s <= 30


def test_a_forgotten_record_is_gone(sandboxes):
    sandboxes.renew([record()], lease_s=30)
    sandboxes.forget("box")
    sandboxes.forget("box")
    assert sandboxes.all() == []


def test_no_key_of_a_sandbox_stays_for_ever(ledger, sandboxes):
    sandboxes.renew([record()], lease_s=30)
    sandboxes.take_turn("far", interval_s=30)
    sandboxes.ownerless("far", [info("other", "w2")], grace_s=30)
    assert [key for key in ledger.client.scan_iter("*") if ledger.client.ttl(key) == -1] == []


def test_one_of_the_fleet_has_the_turn(sandboxes):
    assert sandboxes.take_turn("far", interval_s=30)
    assert not sandboxes.take_turn("far", interval_s=30)
    assert sandboxes.take_turn("other", interval_s=30)


def test_a_sandbox_with_a_lease_has_an_owner(sandboxes):
    sandboxes.renew([record()], lease_s=30)
    assert sandboxes.ownerless("far", [info()], grace_s=0) == []


def test_a_sandbox_whose_worker_beats_has_an_owner(ledger, sandboxes):
    ledger.beat("w1", {}, ttl_s=30)
    assert sandboxes.ownerless("far", [info()], grace_s=0) == []


def test_a_sandbox_without_either_is_dead_after_the_grace_only(sandboxes):
    assert sandboxes.ownerless("far", [info()], grace_s=30) == []
    assert sandboxes.ownerless("far", [info()], grace_s=0) == ["box"]


def test_an_owner_that_comes_back_clears_the_suspicion(ledger, sandboxes):
    sandboxes.ownerless("far", [info()], grace_s=30)
    ledger.beat("w1", {}, ttl_s=30)
    sandboxes.ownerless("far", [info()], grace_s=30)
    assert ledger.client.zcard("hq:reaper:far:suspects") == 0


def test_suspicion_begins_anew_when_turns_were_missed(ledger, sandboxes):
    sandboxes.ownerless("far", [info()], grace_s=30)
    ledger.client.set("hq:reaper:far:turn", time.time() - 100)
    assert sandboxes.take_turn("far", interval_s=30)
    assert ledger.client.zcard("hq:reaper:far:suspects") == 0


def test_suspects_that_are_gone_do_not_pile_up(ledger, sandboxes):
    sandboxes.ownerless("far", [info("box")], grace_s=0)
    long_ago = {"box": time.time() - 2 * 86400}
    ledger.client.zadd("hq:reaper:far:suspects", long_ago)
    sandboxes.ownerless("far", [], grace_s=0)
    assert ledger.client.zcard("hq:reaper:far:suspects") == 0
