"""Which of our groups an Atropos server holds, from what little it tells."""

from __future__ import annotations

import pytest

from hermes_queue.sinks.atropos.client import EnvStatus
from hermes_queue.sinks.atropos.journal import Entry, Journal
from hermes_queue.sinks.atropos.wire import Post


def entry(key: str) -> Entry:
    return Entry(key, Post(key, 3, b""))


def status(step: int, waiting: int) -> EnvStatus:
    return EnvStatus(step, waiting, waiting)


def keys(entries) -> str:
    return "".join(each.key for each in entries)


@pytest.fixture
def journal() -> Journal:
    made = Journal(step=5)
    for key in "abcd":
        made.sent(entry(key))
    return made


def test_the_oldest_are_taken_first(journal):
    assert journal.observe(status(6, 2), now_s=10.0)
    assert (keys(journal.taken), keys(journal.queued)) == ("ab", "cd")


def test_what_is_taken_settles_only_after_a_while(journal):
    journal.observe(status(6, 2), now_s=10.0)
    assert journal.settle(11.9, settle_s=2.0) == []
    assert keys(journal.settle(12.0, settle_s=2.0)) == "ab"
    assert journal.settle(99.0, settle_s=2.0) == []


def test_what_is_not_settled_takes_room(journal):
    assert journal.room(6) == 2
    journal.observe(status(6, 2), now_s=10.0)
    assert journal.room(6) == 2
    journal.settle(12.0, settle_s=2.0)
    assert journal.room(6) == 4


@pytest.mark.parametrize(
    "seen", [status(4, 4), status(5, 2)], ids=["step_back", "gone_without_a_batch"]
)
def test_a_server_that_was_reset_is_noticed(journal, seen):
    assert not journal.observe(seen, now_s=10.0)
    assert keys(journal.queued) == "abcd"


def test_what_a_server_lost_is_sent_again_first_and_in_order(journal):
    journal.ready.append(entry("e"))
    journal.observe(status(6, 2), now_s=10.0)
    assert journal.lost() == 4
    assert keys(journal.ready) == "abcde"
    assert (keys(journal.queued), keys(journal.taken)) == ("", "")


def test_a_successor_learns_from_the_note_what_was_taken_and_what_waits(journal):
    note = journal.note("atropos", 0, entry("e"))
    successor = Journal()
    assert successor.adopt(note, status(6, 3), now_s=1.0)
    assert (keys(successor.taken), keys(successor.queued)) == ("ab", "cde")
    assert (successor.step, successor.find("c"), successor.find("x")) == (
        6,
        successor.queued[0],
        None,
    )


def test_what_only_a_dead_process_knew_is_not_sent_again(journal):
    successor = Journal()
    successor.adopt(journal.note("atropos", 0, entry("e")), status(5, 5), now_s=1.0)
    assert successor.lost() == 0
    assert successor.ready == type(successor.ready)()


@pytest.mark.parametrize(
    "seen",
    [status(4, 5), status(5, 3), status(6, 6)],
    ids=["step_back", "gone_without_a_batch", "more_than_was_sent"],
)
def test_a_note_that_does_not_fit_the_server_is_not_believed(journal, seen):
    successor = Journal()
    assert not successor.adopt(journal.note("atropos", 0, entry("e")), seen, now_s=1.0)
    assert keys(successor.queued) == ""


def test_a_post_without_an_answer_is_found_in_the_note_when_it_arrived(journal):
    coming = entry("e")
    note = journal.note("atropos", 0, coming)
    journal.ready.appendleft(coming)
    assert journal.adopt(note, status(5, 5), now_s=1.0)
    assert (keys(journal.queued), keys(journal.ready)) == ("abcde", "")
    assert journal.queued[-1] is coming


def test_a_post_that_did_not_arrive_is_not_in_the_note_and_stays_ready(journal):
    last = journal.queued.pop()
    note = journal.note("atropos", 0, last)
    journal.sent(last)
    journal.ready.appendleft(entry("e"))
    assert journal.adopt(note, status(5, 4), now_s=1.0)
    assert (keys(journal.queued), keys(journal.ready)) == ("abcd", "e")
