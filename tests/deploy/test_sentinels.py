"""Redis Sentinel puts another server in the master's place, and work goes on there."""

from __future__ import annotations

import pytest
from failover_run import running
from redis_sentinels import RedisSentinels


@pytest.fixture
def sentinels(tmp_path, redis_7):
    made = RedisSentinels(tmp_path / "redis", redis_7)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.mark.fleet
def test_work_goes_on_at_the_next_master(sentinels, tmp_path):
    setting = {"HERMES_QUEUE_REDIS_CONFIRM_REPLICAS": "1"}
    with running(sentinels, tmp_path, jobs=24, workers=1, **setting) as run:
        run.wait_for(8)
        sentinels.kill(0)
        sentinels.wait_for_another_master(0)
        outcome = run.end()
    assert len(outcome.delivered) == 24
    assert outcome.measured_again == 0
