"""A feed tells the ledger how far its trainer is, and reads its consumer group alone."""

from __future__ import annotations

import errno
import os
import threading
import time
from types import SimpleNamespace

import pytest
from ledger_steps import begin, enqueue
from pydantic import ValidationError
from records import make_job
from stream_groups import group_id, names, pending, publish

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.ledger.fleet.pacing import pace_of, set_pace
from hermes_queue.results import sole_reader
from hermes_queue.results.blocking import consume_sync
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import RowRefused
from hermes_queue.trainers.sources import lease, pace

PACED = {"max_lag": 1, "pace": 2}


def ahead(ledger):
    return pace_of(ledger, "run").ahead


def begun(ledger, name):
    job = make_job("run", name)
    enqueue(ledger, job)
    return begin(ledger, job).verdict


def test_a_step_makes_room_when_its_weights_are_published(ledger, feed):
    trainer = feed(**PACED)
    assert trainer.take(1, timeout_s=0) == []
    publish(ledger, *"abcd")
    assert begun(ledger, "e") == "paced"
    trainer.trained(1, trainer.take(2))
    assert ahead(ledger) == 4
    trainer.published(1)
    assert ahead(ledger) == 2


def test_the_pace_of_a_trainer_that_says_no_number_is_that_of_its_steps(ledger, feed):
    trainer = feed(max_lag=2, pace=True)
    assert pace_of(ledger, "run") is None
    assert trainer.take(4, timeout_s=0) == []
    assert pace_of(ledger, "run").max_ahead == 12
    assert trainer.take(1, timeout_s=0) == []  # the rest of an epoch
    assert pace_of(ledger, "run").max_ahead == 12


@pytest.mark.parametrize("wrong", [{"pace": 2}, {"pace": 0, "max_lag": 1}, {"pace": True}])
def test_a_pace_without_a_bound_of_age_is_refused(feed, wrong):
    with pytest.raises(ValidationError, match="needs max_lag"):
        feed(**wrong)


def test_what_is_not_trained_makes_room_too(ledger, feed):
    set_pace(ledger, "run", 8)
    publish(ledger, "a", policy="0")
    publish(ledger, "b", scores=(1.0, 1.0), policy="9")
    publish(ledger, "c", scores=(0.0, 0.5, 1.0), policy="9")
    publish(ledger, "d", policy="9")
    trainer = feed(max_lag=1)
    trainer.published(9)
    (last,) = trainer.take(1)
    assert (trainer.counts.dropped, trainer.counts.refused.total()) == (1, 1)
    trainer.refuse(last, RowRefused("too_long", ""))
    ledger.client.zadd("hq:paced", {"run": 1})
    ledger.due()
    assert ahead(ledger) == 0, "the one with equal scores was acknowledged unseen"


def test_groups_count_once_however_often_the_trainer_starts_again(ledger, feed):
    set_pace(ledger, "run", 8)
    publish(ledger, *"abcd")
    first = feed()
    for step in (1, 2, 3):
        first.trained(step, first.take(1))
        first.published(step)
    first.saved(1)
    assert ahead(ledger) == 1
    first.close()
    again = feed()
    again.resume(1)
    assert len(again.take(1)) == 1
    assert ahead(ledger) == 3, "the weights of steps 2 and 3 are lost"
    again.close()
    third = feed()
    third.resume(1)
    groups = third.take(3)
    assert (sorted(names(groups)), ahead(ledger)) == (["b", "c", "d"], 3)
    third.trained(2, groups)
    third.saved(2)
    assert (ahead(ledger), pending(ledger)) == (0, 0)


def test_an_outage_delays_the_news_only(ledger, feed, redis_server):
    set_pace(ledger, "run", 8)
    publish(ledger, *"ab")
    trainer = feed()
    groups = trainer.take(1)
    redis_server.kill9()
    trainer.trained(1, groups)
    trainer.saved(1)
    redis_server.start()
    assert names(trainer.take(1)) == "b"
    assert ahead(ledger) == 1


def test_news_that_redis_lost_with_its_last_second_is_told_again(ledger, feed, monkeypatch):
    monkeypatch.setattr(pace, "_LOOK_S", 0.0)
    trainer = feed(**PACED)
    assert trainer.take(1, timeout_s=0) == []
    publish(ledger, *"abcd")
    before = ledger.client.hgetall("hq:run:run:ahead")
    trainer.trained(1, [*trainer.take(2), *trainer.take(2)])
    trainer.published(1)
    ledger.client.hset("hq:run:run:ahead", mapping=before)
    assert begun(ledger, "e") == "paced"
    assert trainer.take(1, timeout_s=0) == []
    assert ahead(ledger) == 0, "else it would wait for groups, and these for it"


def test_a_step_that_takes_more_groups_than_it_said_gets_them(ledger, feed):
    trainer = feed(**PACED)
    assert trainer.take(5, timeout_s=0) == []
    assert pace_of(ledger, "run").max_ahead == 10


def test_a_bound_below_the_groups_of_a_step_is_said(ledger, feed, caplog):
    set_pace(ledger, "run", 2)
    trainer = feed()
    assert trainer.take(2, timeout_s=0) == []
    assert "may be ahead" not in caplog.text
    trainer.close()
    again = feed()
    assert again.take(3, timeout_s=0) == []
    assert "takes 3 groups, but only 2 may be ahead" in caplog.text


def test_a_second_trainer_of_a_consumer_group_is_refused(ledger, feed, tmp_path, monkeypatch):
    monkeypatch.setattr(sole_reader, "LEASE_S", 0.5)
    feed()
    with pytest.raises(ConfigurationError, match="is read by the trainer whose journal is /"):
        feed(directory=tmp_path / "other")


def test_a_successor_in_the_same_directory_need_not_wait(ledger, feed, monkeypatch):
    first = feed()
    key = ledger.client.get("hq:sink:trainer")
    first.close()
    assert not ledger.client.exists("hq:sink:trainer")
    ledger.client.set("hq:sink:trainer", key)  # as one that was killed
    monkeypatch.setattr(lease.time, "sleep", lambda _: pytest.fail("it waits"))
    feed()


def test_a_trainer_that_was_silent_for_too_long_stops(ledger, feed, monkeypatch):
    monkeypatch.setattr(sole_reader, "LEASE_S", 0.2)
    trainer = feed()
    ledger.client.set("hq:sink:trainer", "elsewhere:1.2:/other")
    while not trainer._lease.reader._other:
        time.sleep(0.01)
    with pytest.raises(ConfigurationError, match="is read by /other on elsewhere"):
        trainer.take(1, timeout_s=0)
    trainer.close()
    assert ledger.client.get("hq:sink:trainer") == b"elsewhere:1.2:/other"


def test_a_trainer_that_was_stopped_takes_nothing_before_it_knows(ledger, feed, monkeypatch):
    trainer = feed()
    ledger.client.set("hq:sink:trainer", "elsewhere:1.2:/other")
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + sole_reader.LEASE_S)
    monkeypatch.setattr(sole_reader, "time", later)
    with pytest.raises(ConfigurationError, match="is read by /other on elsewhere"):
        trainer.take(1, timeout_s=0)


def test_a_reader_that_cannot_open_leaves_no_thread(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(sole_reader, "LEASE_S", 0.2)
    consume_sync("trainer", url=ledger.url, run="another").close()
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="exists with filter"):
            Feed("trainer", run="run", directory=tmp_path, group_size=2, url=ledger.url)
    assert threading.active_count() == before


def test_a_full_disk_says_what_to_do_with_the_step(ledger, feed, monkeypatch):
    publish(ledger, "a")
    trainer = feed()
    groups = trainer.take(1)

    def fails(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(HermesQueueError, match=r"call trained\(\) again before") as failed:
            trainer.trained(1, groups)
    assert "--run-id" not in str(failed.value)
    trainer.trained(1, groups)
    assert trainer._journal.steps == {group_id("a"): 1}


def test_a_directory_in_use_says_what_to_do(feed):
    feed()
    with pytest.raises(ConfigurationError, match="end the trainer that has this directory"):
        feed()
