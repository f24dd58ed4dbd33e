"""A feed while Redis is away or full, or a call is broken off: no group is lost or too old."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from ledger_steps import begin
from ledger_steps import publish as publish_record
from records import make_record
from stream_groups import names, pending, publish

from hermes_queue import AgentSpec, enqueue, make_jobs
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import set_version
from hermes_queue.trainers.rows import RowRefused, rows_of
from hermes_queue.trainers.sources.policy import announce


@pytest.fixture
def full(ledger: Ledger, feed) -> Iterator[None]:
    """Redis has no room from now on; the consumer group is there."""
    publish(ledger, *"ab")
    feed().close()
    ledger.client.config_set("maxmemory", 1)
    yield
    ledger.client.config_set("maxmemory", 0)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("pace", [True, 2])
def test_a_trainer_begins_while_redis_is_full_since_it_makes_the_room(ledger, feed, pace):
    trainer = feed(max_lag=1, pace=pace)
    groups = trainer.take(2)
    trainer.trained(1, groups)
    trainer.saved(1)
    assert pending(ledger) == 0
    assert announce(trainer.published, 1) is None
    assert trainer._lease.reader.take() == ""
    ledger.client.config_set("maxmemory", 0)
    assert announce(trainer.published, 2) == 2


@pytest.mark.usefixtures("full")
def test_a_name_that_is_read_is_refused_while_redis_is_full(ledger, feed):
    ledger.client.config_set("maxmemory", 0)
    trainer = feed()
    ledger.client.config_set("maxmemory", 1)
    trainer._lease.reader._holder = "of another directory"
    assert trainer._lease.reader.take() != ""


def test_an_old_group_is_not_handed_out_because_redis_is_away(ledger, feed, redis_server):
    publish(ledger, "a", policy="1")
    set_version(ledger, "run", 9)
    trainer = feed(max_lag=2)
    while not trainer._stream._ahead._queue.qsize():
        threading.Event().wait(0.01)
    redis_server.kill9()
    assert trainer.take(1, timeout_s=0.2) == []
    redis_server.start()
    assert trainer.counts.dropped == 1


def test_refusing_a_group_while_redis_is_away_may_be_repeated(ledger, feed, redis_server):
    publish(ledger, "a")
    trainer = feed()
    [group] = trainer.take(1)
    redis_server.kill9()
    with pytest.raises(RedisUnavailable):
        trainer.refuse(group, RowRefused("no_tokens", "none"))
    redis_server.start()
    trainer.refuse(group, RowRefused("no_tokens", "none"))
    assert (pending(ledger), ledger.client.xlen("hq:dead")) == (0, 1)


def test_an_unfit_group_that_comes_while_redis_is_away_is_refused_when_it_is_back(
    ledger, feed, redis_server
):
    publish(ledger, "a")
    back = threading.Timer(0.3, redis_server.start)

    def check(group):
        redis_server.kill9()
        back.start()
        rows_of(group, max_tokens=2)

    trainer = feed(check=check)
    assert trainer.take(1, timeout_s=0.5) == []
    back.join()
    assert (pending(ledger), ledger.client.xlen("hq:dead")) == (0, 1)


class BrokenOff(BaseException):
    """As Ctrl-C."""


def once(call, at: int):
    """The function, which is broken off at its call of that number."""
    seen: list[int] = []

    def broken(*given, **more):
        seen.append(1)
        if len(seen) == at:
            raise BrokenOff
        return call(*given, **more)

    return broken


def test_a_call_of_take_that_is_broken_off_loses_no_group(ledger, feed, monkeypatch):
    publish(ledger, *"abc")
    trainer = feed(max_lag=5)
    monkeypatch.setattr(trainer._policy, "refresh", once(trainer._policy.refresh, 2))
    with pytest.raises(BrokenOff):
        trainer.take(3)
    assert names(trainer.take(3)) == "abc"


def test_a_check_that_fails_loses_no_group(ledger, feed):
    publish(ledger, *"ab")
    trainer = feed(check=once(rows_of, 1))
    with pytest.raises(BrokenOff):
        trainer.take(2)
    trainer.require(once(rows_of, 2))
    with pytest.raises(BrokenOff):
        trainer.take(2)
    assert names(trainer.take(2)) == "ab"


def test_groups_that_are_dropped_do_not_keep_the_caller_beyond_its_time(ledger, feed, monkeypatch):
    publish(ledger, *"abc", policy="1")
    set_version(ledger, "run", 9)
    trainer = feed(max_lag=1)
    within = trainer._stream.next_within
    monkeypatch.setattr(trainer._stream, "next_within", lambda timeout_s: within(5.0))
    for dropped in (1, 2, 3):
        assert trainer.take(1, timeout_s=0.0) == []
        assert trainer.counts.dropped == dropped


def test_a_trainer_whose_name_is_taken_while_it_waits_gets_no_group(ledger, feed, monkeypatch):
    trainer = feed()
    within = trainer._stream.next_within

    def silent_for_long(timeout_s):
        publish(ledger, "a")
        trainer._lease.reader._other = "host:1.2:/of/another/directory"
        return within(5.0)

    monkeypatch.setattr(trainer._stream, "next_within", silent_for_long)
    with pytest.raises(ConfigurationError, match="/of/another/directory"):
        trainer.take(1)


def test_what_an_adapter_needs_is_checked_when_redis_is_back(ledger, feed, redis_server):
    items = [{"instance_id": "a", "question": "1+1?", "answer": "#### 2"}]
    given = {"run_id": "run", "env": "gsm8k", "items": items, "agent": AgentSpec(kind="openai")}
    enqueue(**given, group_size=2, url=ledger.url)
    trainer = feed()
    redis_server.kill9()
    trainer.require(tokens=True)
    redis_server.start()
    for job in make_jobs(**given, group_size=2):
        begin(ledger, job)
        publish_record(ledger, make_record(job, float(job.sample_index)))
    with pytest.raises(ConfigurationError, match="without token ids"):
        trainer.take(1)
