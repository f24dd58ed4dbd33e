"""A Redis that deletes keys when it is full is refused before anything depends on it."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from records import make_job

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from workers.lifecycle import open_runtime

REFUSED = "deletes keys when it is full.*maxmemory-policy noeviction"


@pytest.fixture
def evicting(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    with closing(Ledger.connect()) as ledger:
        ledger.client.config_set("maxmemory", "100mb")
        ledger.client.config_set("maxmemory-policy", "volatile-lru")
        yield ledger


def test_a_producer_refuses_a_redis_that_evicts_and_takes_one_that_would_only_with_a_limit(
    evicting,
):
    with pytest.raises(ConfigurationError, match=REFUSED):
        enqueue([make_job()], ledger=evicting)
    assert not evicting.client.exists("hq:runs", "hq:delayed")
    evicting.client.config_set("maxmemory", "0")
    assert enqueue([make_job()], ledger=evicting).enqueued == 1


def test_a_worker_does_not_start_with_a_redis_that_evicts(evicting):
    with pytest.raises(ConfigurationError, match=REFUSED):
        asyncio.run(open_runtime())
