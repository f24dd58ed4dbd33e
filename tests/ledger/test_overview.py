"""What workers tell and what an overview makes of it, on every Redis we support."""

from __future__ import annotations

import time

from hermes_queue.ledger import Breakers
from hermes_queue.ledger.fleet.lanes import (
    EndedAttempts,
    Watched,
    known_lanes,
    note_lanes,
    pause_lane,
)
from hermes_queue.ledger.fleet.tally import Tally


def now(ledger):
    seconds, micros = ledger.client.time()
    return seconds + micros / 1e6


def test_a_worker_lives_as_long_as_it_beats(ledger):
    ledger.beat("a", {"owner": "a", "beat_s": 40.0}, ttl_s=40)
    ledger.beat("b", {"owner": "b", "beat_s": 0.05}, ttl_s=0.05)
    time.sleep(0.1)
    [alive] = ledger.workers()
    assert alive["owner"] == "a"
    assert 0 <= alive["silent_s"] < 30
    ledger.beat("a", {"owner": "a"}, ttl_s=40)
    assert ledger.client.zrange("hq:workers", 0, -1) == [b"a"]
    ledger.unregister("a")
    assert ledger.workers() == []


def test_counts_of_several_workers_add_up_by_name(ledger):
    for _ in range(2):
        Tally(ledger).add(attempts={"": 3, "model": 1}, ended={"run:with:colons": 2})
    found = Tally(ledger).lately(600, now=now(ledger))
    assert dict(found.attempts) == {"": 6, "model": 2}
    assert dict(found.ended) == {"run:with:colons": 4}


def test_counts_fall_out_of_the_window(ledger):
    Tally(ledger).add(attempts={"": 3}, ended={})
    later = Tally(ledger).lately(600, now=now(ledger) + 900)
    assert (dict(later.attempts), dict(later.ended)) == ({}, {})


def test_nothing_to_count_writes_nothing(ledger):
    Tally(ledger).add(attempts={}, ended={})
    assert ledger.client.keys("*") == []


def test_lanes_are_known_from_the_jobs_that_were_sent_to_them(ledger):
    note_lanes(ledger, ["train", "eval", "train"])
    note_lanes(ledger, [])
    assert known_lanes(ledger) == {"train", "eval"}


def test_a_lane_paused_by_hand_opens_no_sooner_than_somebody_closes_it(ledger):
    pause_lane(ledger, "train", "new image")
    pause_lane(ledger, "train", "newer image")
    breakers = Breakers(ledger)
    assert breakers.record(Watched("train"), {"": EndedAttempts(100)}) == ""
    state = breakers.state("train")
    assert (state.state, state.cause, state.message) == ("open", "operator", "newer image")
    assert state.until > now(ledger) + 86400
    assert breakers.close("train")
    assert breakers.state("train").state == "closed"


def test_none_of_it_stays_for_ever(ledger):
    ledger.beat("a", {"owner": "a"}, ttl_s=40)
    Tally(ledger).add(attempts={"": 1}, ended={"r": 1})
    note_lanes(ledger, ["train"])
    pause_lane(ledger, "train")
    assert [key for key in ledger.client.scan_iter("*") if ledger.client.ttl(key) == -1] == []
