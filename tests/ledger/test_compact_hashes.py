"""With the options that we start Redis with, jobs and what is kept of finished ones are compact."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.broker.embedded import HASH_OPTIONS, ZSET_OPTIONS
from hermes_queue.ledger import Ledger

LIMIT = HASH_OPTIONS[1]
GROUP_SIZE = 8
ROW = {"problem_statement": "something is wrong with it " * 60}
START = Path(__file__).parents[2] / "deploy" / "redis" / "start.sh"


@pytest.fixture
def compact(ledger: Ledger) -> Ledger:
    """A ledger in a Redis with that option."""
    before = ledger.client.config_get("hash-max-*-value")
    ledger.client.config_set(HASH_OPTIONS[0].removeprefix("--"), LIMIT)
    yield ledger
    for name, value in before.items():
        ledger.client.config_set(name, value)


def hashes(ledger: Ledger) -> list[bytes]:
    """Keys of all trajectories and groups."""
    return [*ledger.client.keys("hq:traj:*"), *ledger.client.keys("hq:group:*")]


@pytest.mark.parametrize("ledger", ["redis-7", "redis-6.2"], indirect=True)
def test_jobs_and_groups_are_compact_from_the_first_step_to_the_last(compact: Ledger) -> None:
    jobs = [make_job("run", "i", n, GROUP_SIZE, item=ROW) for n in range(GROUP_SIZE)]

    def encodings() -> set[bytes]:
        return {compact.client.object("encoding", key) for key in hashes(compact)}

    enqueue(compact, *jobs)
    assert encodings() <= {b"listpack", b"ziplist"}
    for job in jobs:
        begin(compact, job)
        publish(compact, make_record(job))
    assert compact.run_status("run").finished == GROUP_SIZE
    assert encodings() <= {b"listpack", b"ziplist"}
    kept = sum(compact.client.memory_usage(key, samples=0) for key in hashes(compact))
    assert kept / GROUP_SIZE < 600


def test_the_server_of_a_deployment_has_the_same_limits_as_the_embedded_one() -> None:
    start = START.read_text(encoding="utf-8")
    assert f"--hash-max-listpack-value {LIMIT} " in start
    assert f"--zset-max-listpack-entries {ZSET_OPTIONS[1]} " in start
