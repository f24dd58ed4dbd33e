"""Workers of one host give their slots different uids."""

from __future__ import annotations

import pytest

from hermes_queue.sandbox.host.paths import SLOT_UID
from hermes_queue.sandbox.local import uids as slot_uids
from hermes_queue.sandbox.local.uids import BLOCK, SlotUids

FIRST = 1_879_113_728


@pytest.fixture(autouse=True)
def as_root_of_the_host(monkeypatch):
    monkeypatch.setattr(slot_uids, "is_root", lambda: True)
    monkeypatch.setattr(slot_uids, "is_mapped", lambda first, count: first == FIRST)


def test_two_workers_with_one_cache_never_have_the_same_uid(tmp_path):
    workers = [SlotUids(tmp_path, FIRST, 4 * BLOCK) for _ in range(2)]
    taken = [worker.take() for worker in workers for _ in range(2 * BLOCK)]
    assert len(set(taken)) == 4 * BLOCK
    assert set(taken) <= set(range(FIRST, FIRST + 4 * BLOCK))


def test_what_is_free_for_longest_is_taken_next(tmp_path):
    uids = SlotUids(tmp_path, FIRST, BLOCK)
    first, second = uids.take(), uids.take()
    uids.give_back(second)
    uids.give_back(first)
    taken = [uids.take() for _ in range(BLOCK)]
    assert taken[-2:] == [second, first]


def test_a_worker_that_ended_leaves_its_uids_to_others(tmp_path):
    ended, heir = SlotUids(tmp_path, FIRST, BLOCK), SlotUids(tmp_path, FIRST, BLOCK)
    ended.take()
    assert heir.take() == SLOT_UID
    ended.close()
    assert heir.take() in range(FIRST, FIRST + BLOCK)


def test_where_none_are_left_slots_share_one_and_the_worker_says_so(tmp_path, caplog):
    uids = SlotUids(tmp_path, FIRST, BLOCK)
    taken = [uids.take() for _ in range(BLOCK + 2)]
    assert taken[-2:] == [SLOT_UID, SLOT_UID]
    assert "HERMES_QUEUE_LOCAL_UIDS" in caplog.text
    uids.give_back(SLOT_UID)
    assert uids.take() == SLOT_UID


def test_uids_that_do_not_exist_in_the_workers_namespace_are_not_used(tmp_path):
    uids = SlotUids(tmp_path, FIRST + BLOCK, BLOCK)
    assert uids.is_shared
    assert uids.take() == SLOT_UID


def test_an_ordinary_users_slots_share_its_uid(tmp_path, monkeypatch):
    monkeypatch.setattr(slot_uids, "is_root", lambda: False)
    assert SlotUids(tmp_path, FIRST, BLOCK).is_shared
