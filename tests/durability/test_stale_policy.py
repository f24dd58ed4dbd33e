"""A policy that moves on while workers sample and die: nothing is lost, nothing too old is used."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from chat_endpoint import ChatEndpoint, Raw, completion
from records import make_job
from spool_files import spooled
from worker_process import wait_until

from hermes_queue import consume, set_policy_version
from hermes_queue.broker.enqueue import enqueue

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
BODY = json.dumps(completion("\\boxed{24}")[1]).encode()


class Policy:
    """An endpoint whose weights change, and that says which ones served a call."""

    def __init__(self) -> None:
        self.version = 0
        self.wait_s = 0.0
        self.announces = True
        self.endpoint = ChatEndpoint(self._answer)

    def _answer(self, path: str, body: dict[str, object]) -> Raw:
        headers = {"X-Policy-Version": str(self.version)} if self.announces else {}
        return Raw(BODY, headers=headers, wait_s=self.wait_s)


@pytest.fixture
def policy() -> Iterator[Policy]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    policy = Policy()
    asyncio.run_coroutine_threadsafe(policy.endpoint.__aenter__(), loop).result(10)
    yield policy
    asyncio.run_coroutine_threadsafe(policy.endpoint.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def sample(policy, group, size, **group_policy):
    agent = {"kind": "openai", "model": "m", "base_url": policy.endpoint.url}
    agent["params"] = {"probe_tools": False}
    return [
        make_job("run", group, index, size, item=ROW, agent=agent, group_policy=group_policy)
        for index in range(size)
    ]


async def groups_of(url):
    return [group async for group in consume("trainer", url=url, idle_timeout_s=0.5)]


@pytest.mark.fleet
def test_a_worker_killed_while_the_policy_moves_on_loses_and_doubles_nothing(
    start_worker, redis_server, ledger, policy
):
    bound = {"max_policy_lag": 0, "on_stale": "requeue", "max_requeues": 100}
    jobs = [job for n in range(3) for job in sample(policy, f"g{n}", 2, **bound)]
    enqueue(jobs, ledger=ledger)
    set_policy_version("run", 0, url=redis_server.url)
    policy.wait_s = 1.5
    first = start_worker(concurrency=4)
    for version in (1, 2, 3):
        asked = len(policy.endpoint.requests)
        wait_until("calls in flight", lambda asked=asked: len(policy.endpoint.requests) > asked)
        policy.version = version
        set_policy_version("run", version, url=redis_server.url)
        if version == 2:
            first.kill9()
            start_worker(concurrency=4)
    wait_until("run done", lambda: ledger.run_status("run").done, timeout_s=90)

    groups = asyncio.run(groups_of(redis_server.url))
    assert sorted(group.instance_id for group in groups) == ["g0", "g1", "g2"]
    for group in groups:
        assert (group.complete, len(group.members), group.stale) == (True, 2, ())
        for member in group.members:
            assert int(member.policy_oldest) >= group.policy_version, "the bound is 0"
    status = ledger.run_status("run")
    assert status.stale >= 1
    assert status.stale == status.stale_requeued == sum(len(group.extras) for group in groups)
    assert (status.finished, status.failed, status.surplus) == (6, 0, 0)
    assert status.total == 6 + status.stale


@pytest.mark.fleet
def test_a_record_that_a_dead_worker_left_in_its_spool_is_judged_like_any_other(
    start_worker, redis_server, ledger, policy
):
    bound = {"max_policy_lag": 0, "on_stale": "drop"}
    job = sample(policy, "g", 1, **bound)[0]
    policy.announces = False  # then the version at the begin counts
    set_policy_version("run", 4, url=redis_server.url)
    policy.wait_s = 4
    first = start_worker(concurrency=1)
    enqueue([job], ledger=ledger)
    wait_until("it is sampled", lambda: policy.endpoint.requests)
    redis_server.stop()  # so that the record stays in the spool
    spool = first.log_path.parent / "spool"
    wait_until("the record is on disk", lambda: spooled(spool))
    first.kill9()
    redis_server.start()
    set_policy_version("run", 5, url=redis_server.url)
    start_worker(concurrency=1)
    wait_until("run done", lambda: ledger.run_status("run").done, timeout_s=90)
    status = ledger.run_status("run")
    assert (status.total, status.finished, status.stale, status.dropped) == (1, 0, 1, 1)
    assert asyncio.run(groups_of(redis_server.url)) == []
    wait_until("the spool is empty", lambda: not spooled(spool))
