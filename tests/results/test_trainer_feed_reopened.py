"""A feed that is opened again while its trainer lives on, as under a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.disk import locked
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.sources import window

OpenFeed = Callable[..., Feed]


@pytest.fixture
def feed(ledger: Ledger, tmp_path: Path) -> Iterator[OpenFeed]:
    """Publishes five groups, and opens feeds, which are closed at the end."""
    for name in "abcde":
        jobs = [make_job(instance=name, sample=i, size=2) for i in range(2)]
        enqueue(ledger, *jobs)
        for job, score in zip(jobs, (0.0, 1.0), strict=True):
            begin(ledger, job)
            publish(ledger, make_record(job, score))
    with ExitStack() as stack:

        def opened(**options) -> Feed:
            given = {"run": "run", "directory": tmp_path, "group_size": 2, "url": ledger.url}
            return stack.enter_context(Feed("trainer", **{**given, **options}))

        yield opened


def pending(ledger: Ledger) -> int:
    return ledger.client.xpending("hq:results", "trainer")["pending"]


def names(groups) -> str:
    return "".join(group.instance_id for group in groups)


def test_what_a_living_trainer_has_waits_for_its_checkpoint(ledger, feed):
    first = feed()
    for step in (1, 2, 3):
        groups = first.take(1)
        first.trained(step, groups)
    first.saved(1)
    first.close()
    again = feed()
    assert again.resume(1, kept=2, again=[groups[0].group_id]) == 2
    assert names(again.take(1)) == "c"
    assert names(again.take(2)) == "de"
    assert again.counts.recognised == 1
    before = pending(ledger)  # b is in weights that no checkpoint has
    again.saved(2)
    assert (before - pending(ledger), again.counts.saved) == (1, 1)


def test_groups_that_come_again_come_first_and_in_the_order_asked_for(feed):
    first = feed()
    groups = first.take(4)
    first.trained(1, groups)
    first.close()
    again = feed(window=2)
    again.resume(None, again=[group.group_id for group in reversed(groups)])
    assert names(again.take(5)) == "dcbae"


def test_a_group_that_never_comes_again_is_not_waited_for_for_ever(feed, monkeypatch):
    monkeypatch.setattr(window, "_AWAIT_S", 0.2)
    trainer = feed()
    trainer.resume(None, again=["gone"])
    assert trainer.take(1, timeout_s=0.0) == []
    assert names(trainer.take(1)) == "a"


def test_a_feed_can_be_made_ready_before_anything_is_taken(ledger, feed):
    trainer = feed()
    assert trainer.ready(3, timeout_s=10.0) == 3
    assert trainer.ready(9, timeout_s=0.5) == 5
    assert trainer.counts.taken == 0
    assert names(trainer.take(2, timeout_s=0.0)) == "ab"


def test_however_often_a_trainer_dies_its_groups_are_delivered_again(ledger, feed):
    first = feed()
    first.take(1)
    first.close()
    [held, *_] = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 1)
    ledger.client.xclaim(
        "hq:results", "trainer", held["consumer"], 0, [held["message_id"]], retrycount=100_000
    )
    assert sorted(names(feed().take(5, timeout_s=20))) == list("abcde")
    assert ledger.client.xlen("hq:dead") == 0


def test_a_feed_whose_journal_could_not_be_cut_hands_nothing_out(feed, monkeypatch):
    first = feed()
    first.trained(1, first.take(1))
    first.close()
    again = feed()

    def fails(*_: object) -> None:
        raise HermesQueueError("the device failed")

    with monkeypatch.context() as patch:
        patch.setattr(locked, "cut", fails)
        with pytest.raises(HermesQueueError, match="device"):
            again.resume(None)
    with pytest.raises(ConfigurationError, match="call resume"):
        again.take(1)
    assert again.resume(None) == 0
    assert sorted(names(again.take(5))) == [*"abcde"]
