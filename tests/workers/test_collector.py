"""What a worker's start has made is no work for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from workers.lifecycle import spare_collector


@pytest.fixture
def collector() -> Iterator[None]:
    """Put the collector's thresholds back; what this process has frozen stays so."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_what_the_start_has_made_is_left_alone_and_later_cycles_are_collected(
    collector: None,
) -> None:
    made = [object(), []]
    spare_collector()
    assert not any(each is made for each in gc.get_objects())
    later: list[object] = []
    later.append(later)
    assert any(each is later for each in gc.get_objects())
    assert gc.get_threshold()[0] > 700
    del later
    assert gc.collect() >= 1
