"""A step's groups, split over the ranks of a trainer."""

from __future__ import annotations

import pickle
import random

import pytest

from hermes_queue.trainers.rows import Row
from hermes_queue.trainers.sources.ranks import split


def rows(tokens: int, group: str = "g") -> tuple[Row, ...]:
    ids = tuple(range(tokens))
    return (Row(ids, ids, ids, 0.0, 0.0, 1, f"{group}.0", group, 0, 1, None, "main"),)


def lengths(part) -> list[int]:
    return [len(row.ids) for group in part for row in group]


def test_every_rank_gets_as_many_groups_and_about_as_many_tokens():
    groups = [rows(tokens) for tokens in (90, 10, 20, 80, 30, 70)]
    assert [lengths(split(groups, rank, 3)) for rank in range(3)] == [[90, 10], [20, 80], [30, 70]]


def test_every_group_is_in_exactly_one_rank_in_its_order():
    chance = random.Random(1)
    groups = [rows(chance.randrange(2, 500), f"g{n:03}") for n in range(64)]
    parts = [split(groups, rank, 8) for rank in range(8)]
    assert [len(part) for part in parts] == [8] * 8
    names = [[group[0].group_id for group in part] for part in parts]
    assert sorted(name for part in names for name in part) == [f"g{n:03}" for n in range(64)]
    assert all(part == sorted(part) for part in names)
    totals = [sum(lengths(part)) for part in parts]
    assert max(totals) < 1.05 * min(totals)


def test_what_a_broadcast_delivers_is_split_alike():
    groups = [rows(tokens) for tokens in (5, 5, 5, 5)]
    received = pickle.loads(pickle.dumps(groups))
    assert [split(received, rank, 2) for rank in (0, 1)] == [split(groups, r, 2) for r in (0, 1)]


@pytest.mark.parametrize(
    ("count", "rank", "world", "why"),
    [(3, 0, 2, "take a multiple"), (2, 2, 2, "rank 2 of 2"), (2, -1, 2, "rank -1 of 2")],
)
def test_what_cannot_be_shared_equally_is_refused(count, rank, world, why):
    with pytest.raises(ValueError, match=why):
        split([rows(2)] * count, rank, world)
