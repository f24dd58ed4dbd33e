"""Feeds for the tests of trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hermes_queue.ledger import Ledger
from hermes_queue.trainers.feed import Feed

OpenFeed = Callable[..., Feed]


@pytest.fixture
def feed(ledger: Ledger, tmp_path: Path) -> Iterator[OpenFeed]:
    """Opens feeds of this test's Redis and journal, and closes them."""
    with ExitStack() as stack:

        def opened(**options) -> Feed:
            given = {"run": "run", "directory": tmp_path, "group_size": 2, "url": ledger.url}
            return stack.enter_context(Feed("trainer", **{**given, **options}))

        yield opened
