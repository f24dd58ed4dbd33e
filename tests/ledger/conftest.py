"""The ledger on every server it must run on: Redis 7, Redis 6.2, and fakeredis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fakeredis
import pytest
from redis_server import RedisServer, redis_binary_of

from hermes_queue.ledger import Ledger

EVERYWHERE = (
    "test_any_order.py::test_a_life_that_is_cancelled[1",
    "test_overview.py::test_none_of_it_stays_for_ever[",
    "test_limiter.py::test_everything_expires[",
    "test_flights.py::test_everything_expires[",
    "test_sandboxes.py::test_no_key_of_a_sandbox_stays_for_ever[",
    "test_sandboxes.py::test_nothing_is_claimed_that_has_no_record[",
    "test_cancelling.py::test_what_celery_revokes_ends_only_if_it_waits_and_what_it_terminates",
    "test_objects.py::test_objects_of_another_store_stay_listed[",
    "test_snapshots.py::",
    "test_journals.py::test_a_repeated_call_adds_nothing_twice",
    "test_probes.py::test_the_last_verdict_stands[",
    "test_creations.py::",
    "test_breaker.py::test_a_breaker_is_closed_by_hand[",
    "test_trimming.py::test_the_count_of_bytes_follows[",
    "test_policy_versions.py::test_requeues_end_at_their_limit[",
    "test_ledger.py::test_a_job_whose_message_was_lost_is_published_again[",
    "test_deaths.py::test_a_death_alone_counts_in_full_when_a_living_parent_saw_it",
    "test_pacing.py::test_no_group_begins_while",
    "test_pacing.py::test_a_group_that_the_trainer_acknowledged_unsaid",
    "test_task_memory.py::test_what_was_exported_comes_back",
    "test_task_memory.py::test_the_deaths_of_a_poison_item",
    "test_junk_heals.py::test_jobs_that_another_program_took_out",
    "test_dead_letters.py::test_jobs_of_a_poison_item_run_alone_from_the_first_attempt",
)
"""Tests that call every script at least once between them, by the begin of their names."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests on other servers than Redis 7 to `make test-exhaustive`, but for `EVERYWHERE`."""
    here = Path(__file__).parent
    for item in items:
        name = item.nodeid.rpartition("/")[2]
        other = "redis-6.2" in name or "fakeredis" in name
        if item.path.parent == here and other and not name.startswith(EVERYWHERE):
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(params=["redis-7", "redis-6.2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(redis_binary_of(request.param), tmp_path / "r")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """The server of a version, one for all tests of this process."""
    running: dict[str, RedisServer] = {}

    def of_version(version: str) -> RedisServer:
        if version not in running:
            directory = tmp_path_factory.mktemp(version)
            running[version] = RedisServer(redis_binary_of(version), directory)
            running[version].start()
        return running[version]

    yield of_version
    for server in running.values():
        server.close()


@pytest.fixture(params=["redis-7", "redis-6.2", "fakeredis"])
def ledger(
    request: pytest.FixtureRequest, shared: Callable[[str], RedisServer]
) -> Iterator[Ledger]:
    """A ledger in an empty Redis. Tests that stop or fill one take `server`."""
    if request.param == "fakeredis":
        fake = fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="redis"))
        yield Ledger(fake, prefix="hq:")
        return
    server = shared(request.param)
    with server.client(decode_responses=False) as client:
        client.flushall()
        yield Ledger(client, prefix="hq:", url=server.url)
