"""The fleet's gate for creating sandboxes."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from hermes_queue.ledger.fleet.creations import FleetCreationGate
from hermes_queue.sandbox.fleet import CreationRate


class Gate(FleetCreationGate):
    """One worker's, with the rate that its backend has."""

    def __init__(self, ledger, backend, *, creates_per_s=1000.0, max_starting=1000):
        super().__init__(ledger, backend)
        self.rate = CreationRate(creates_per_s, max_starting)

    def ask(self, token):
        return self.take(token, self.rate)

    def make_one(self):
        return self.creating(self.rate)


@pytest.fixture
def gate(ledger):
    return partial(Gate, ledger, "far")


def test_the_rate_holds_for_two_workers_together(gate):
    gates = gate(creates_per_s=2.0), gate(creates_per_s=2.0)
    began = time.monotonic()
    waits = [gates[n % 2].ask(f"token{n}") for n in range(12)]
    took_s = time.monotonic() - began
    assert waits[:2] == [0, 0]
    assert waits.count(0) <= 2 + 2.0 * took_s
    assert max(waits) <= 0.5


def test_a_creation_that_asks_again_has_its_turn_already(gate):
    slow = gate(creates_per_s=0.01)
    assert slow.ask("a") == 0
    assert slow.ask("a") == 0
    assert slow.ask("b") > 1


def test_no_more_than_the_cap_are_starting(gate):
    one, other = gate(max_starting=2), gate(max_starting=2)
    assert (one.ask("a"), other.ask("b")) == (0, 0)
    assert one.ask("c") > 0
    other.leave("b")
    assert one.ask("c") == 0


def test_backends_do_not_share_their_rates(ledger):
    far = Gate(ledger, "far", creates_per_s=0.01, max_starting=1)
    near = Gate(ledger, "near", creates_per_s=0.01, max_starting=1)
    assert (far.ask("a"), near.ask("b")) == (0, 0)


async def test_what_has_started_counts_no_more_also_when_it_failed(gate):
    narrow = gate(max_starting=1)
    async with narrow.make_one():
        assert narrow.ask("other") > 0
    with pytest.raises(RuntimeError):
        async with narrow.make_one():
            raise RuntimeError
    assert narrow.ask("other") == 0


async def test_who_is_cancelled_while_waiting_leaves_nothing(gate):
    narrow = gate(max_starting=1)
    assert narrow.ask("first") == 0

    async def create():
        async with narrow.make_one():
            pytest.fail("there was no room")

    waiting = asyncio.create_task(create())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    narrow.leave("first")
    assert narrow.ask("next") == 0


async def test_who_is_cancelled_while_redis_is_asked_leaves_nothing(gate, monkeypatch):
    narrow = gate(max_starting=1)
    take = narrow.take
    asking, go, answered = (threading.Event() for _ in range(3))

    def late(token, rate):
        asking.set()
        assert go.wait(60)
        found = take(token, rate)
        answered.set()
        return found

    async def create():
        async with narrow.make_one():
            pytest.fail("it was cancelled")

    monkeypatch.setattr(narrow, "take", late)
    creating = asyncio.create_task(create())
    await asyncio.to_thread(asking.wait, 60)
    creating.cancel()
    await asyncio.wait([creating], timeout=0.2)  # it may wait for the answer
    go.set()
    await asyncio.wait([creating])
    assert creating.cancelled()
    assert await asyncio.to_thread(answered.wait, 60)
    assert take("next", narrow.rate) == 0


def test_no_key_of_the_gate_stays_for_ever(ledger, gate):
    gate().ask("a")
    assert [key for key in ledger.client.scan_iter("*") if ledger.client.ttl(key) == -1] == []


async def test_creation_does_not_wait_for_redis(redis_server):
    from hermes_queue.ledger import Ledger

    ledger = Ledger.connect(redis_server.url, timeout_s=5.0)
    redis_server.kill9()
    gate = Gate(ledger, "far", creates_per_s=1000.0, max_starting=1)
    async with gate.make_one():
        pass
    ledger.close()


def test_a_clock_of_redis_that_was_set_back_keeps_no_creation_waiting(ledger, gate):
    ahead = time.time() + 3600
    ledger.client.hset("hq:creation:far", mapping={"tokens": 0.0, "at": ahead})
    ledger.client.zadd("hq:creation:far:starting", {"dead": ahead})
    assert gate(max_starting=1).ask("a") > 0
    assert ledger.client.zscore("hq:creation:far:starting", "dead") < ahead - 2000
    assert 0 < gate(creates_per_s=2.0).ask("a") <= 0.5
    assert float(ledger.client.hget("hq:creation:far", "at")) < ahead - 2000
