"""The ledger on every server it must run on: Redis 7, Redis 6.2, and fakeredis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from redis_server import RedisServer, redis_binary_of

from hermes_queue.ledger import Ledger

OTHERS = pytest.mark.exhaustive
"""`make test-all` runs all tests on the other servers, too. Those of `EVERYWHERE` always do."""
EVERYWHERE = (
    "test_any_order.py::test_a_life_that_is_cancelled[1",
    "test_overview.py::test_none_of_it_stays_for_ever[",
    "test_limiter.py::test_everything_expires[",
    "test_sandboxes.py::test_no_key_of_a_sandbox_stays_for_ever[",
    "test_sandboxes.py::test_nothing_is_claimed_that_has_no_record[",
    "test_cancelling.py::test_what_celery_revokes_ends_only_if_it_waits_and_what_it_terminates",
    "test_objects.py::test_objects_of_another_store_stay_listed[",
    "test_snapshots.py::",
    "test_probes.py::test_the_last_verdict_stands[",
    "test_creations.py::",
    "test_breaker.py::test_a_breaker_is_closed_by_hand[",
    "test_trimming.py::test_the_count_of_bytes_follows[",
    "test_policy_versions.py::test_requeues_end_at_their_limit[",
    "test_ledger.py::test_a_job_whose_message_was_lost_is_published_again[",
    "test_deaths.py::test_a_death_alone_counts_in_full_when_a_living_parent_saw_it",
    "test_dead_letters.py::test_jobs_of_a_poison_item_run_alone_from_the_first_attempt",
)
"""Tests that call every script at least once between them, by the begin of their names."""
REDIS_6 = pytest.param("redis-6.2", marks=OTHERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of `EVERYWHERE` run on every server, whatever else is asked for."""
    for item in items:
        if (
            item.path.parent == Path(__file__).parent
            and item.name
            and any(item.nodeid.rpartition("/")[2].startswith(name) for name in EVERYWHERE)
        ):
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "exhaustive"]


@pytest.fixture(params=["redis-7", REDIS_6])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(redis_binary_of(request.param), tmp_path / "r")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["redis-7", REDIS_6, pytest.param("fakeredis", marks=OTHERS)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    if request.param == "fakeredis":
        fake = fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="redis"))
        yield Ledger(fake, prefix="hq:")
        return
    server = RedisServer(redis_binary_of(request.param), tmp_path / "r")
    try:
        server.start()
        with server.client(decode_responses=False) as client:
            yield Ledger(client, prefix="hq:", url=server.url)
    finally:
        server.close()
