"""Worker processes share one view of an endpoint's limits, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from records import make_job
from worker_process import wait_until
from zygote import start_forked

from benchmarks.capped_endpoint import CappedEndpoint
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger.fleet.limiter import EndpointLimits, limit_name

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
PATIENT = {"HERMES_QUEUE_MODEL_REQUEST_TIMEOUT_S": "600"}
LEASE_S = 8.0
"""Renewed each second."""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def serve() -> Iterator[Callable[..., CappedEndpoint]]:
    """Starts endpoints on a loop of their own; they are read and changed from the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    served: list[CappedEndpoint] = []

    def serve(cap: int, service_s: tuple[float, float], **options: object) -> CappedEndpoint:
        endpoint = CappedEndpoint(cap, service_s, **options)  # type: ignore[arg-type]
        asyncio.run_coroutine_threadsafe(endpoint.__aenter__(), loop).result(10)
        served.append(endpoint)
        return endpoint

    yield serve
    for endpoint in served:
        asyncio.run_coroutine_threadsafe(endpoint.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def ask_model(instance, *endpoints, **limits):
    agent = {"kind": "openai", "model": "m", "base_url": ",".join(e.url for e in endpoints)}
    agent["params"] = {"probe_tools": False}  # it would be counted among the calls
    return make_job("run", instance, item=ROW, agent=agent, limits=limits)


@pytest.mark.fleet
def test_four_processes_learn_what_an_endpoint_serves_and_are_seldom_refused(
    redis_server, ledger, serve
):
    # On a busy machine, too, more than 20 calls must be open at once before it is settled.
    endpoint = serve(20, (0.15, 0.45))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    urls = redis_server.url, endpoint.url
    processes = [start_forked("limited_load", *urls, environment=environment) for _ in range(4)]
    try:
        settled = lambda: endpoint.served > 300 and endpoint.refused > 0  # noqa: E731
        wait_until("it has settled", settled, timeout_s=150)
        served, refused = endpoint.served, endpoint.refused
        wait_until("more calls", lambda: endpoint.served > served + 500, timeout_s=150)
        assert endpoint.refused - refused <= 10
        state = EndpointLimits(ledger).state(limit_name(endpoint.url, "m"))
        assert 5 <= state.limit <= 24
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.fleet
def test_leases_of_long_calls_are_kept_and_those_of_a_killed_worker_end(
    start_worker, ledger, factory, serve
):
    endpoint = serve(100, (600, 600))
    lease = {"HERMES_QUEUE_LEASE_DURATION_S": str(LEASE_S)}
    four = {"HERMES_QUEUE_LIMITER_START_CALLS": "4", "HERMES_QUEUE_LIMITER_MAX_CALLS": "4"}
    first = start_worker(concurrency=4, **four, **lease, **PATIENT)
    enqueue([ask_model(f"i{n}", endpoint) for n in range(8)], ledger=ledger)
    wait_until("four calls", lambda: endpoint.begun == 4)
    start_worker(concurrency=4, **four, **lease, **PATIENT)
    factory.wait_running(8)
    limits, name = EndpointLimits(ledger), limit_name(endpoint.url, "m")
    wait_until("the others wait", lambda: limits.state(name).waiting == 4)
    time.sleep(1.5 * LEASE_S)
    assert (endpoint.begun, limits.state(name).leased) == (4, 4)
    first.kill9()
    wait_until("the places are taken by the living", lambda: endpoint.begun == 8)
    assert limits.state(name).leased == 4


@pytest.mark.fleet
def test_a_paused_endpoint_is_waited_out_beyond_every_deadline(
    start_worker, ledger, factory, serve
):
    # What refused calls take counts, so there are few: on a busy machine each takes a while.
    endpoint = serve(100, (0, 0), paused=True, pause_s=3.0)
    start_worker(concurrency=2)
    limits = {"agent_timeout_s": 7, "total_timeout_s": 8}
    enqueue([ask_model(f"i{n}", endpoint, **limits) for n in range(2)], ledger=ledger)
    wait_until("turned away", lambda: endpoint.turned_away >= 2)
    time.sleep(9)  # longer than either limit
    endpoint.paused = False
    records = factory.wait_done()
    assert [(r.status, r.stop_reason, r.attempt) for r in records] == [
        ("completed", "no_tool_call", 1)
    ] * 2
    assert set(endpoint.sessions) == {record.trajectory_id for record in records}


def test_a_trajectory_whose_endpoint_failed_is_tried_on_another_one(
    start_worker, ledger, factory, serve
):
    broken, sound = serve(100, (0, 0), status=500), serve(100, (0, 0))
    start_worker(
        concurrency=4,
        HERMES_QUEUE_MODEL_MAX_RETRIES="0",
        HERMES_QUEUE_RETRY_BACKOFF_S="0.1",
    )
    enqueue([ask_model(f"i{n}", broken, sound) for n in range(20)], ledger=ledger)
    records = factory.wait_done()
    assert {record.status for record in records} == {"completed"}
    assert {turn.server for record in records for turn in record.turns} == {sound.url}
    assert {record.attempt for record in records} == {1, 2}
    moved = [record for record in records if record.attempt == 2]
    assert all(broken.url in record.attempts[0].failure.message for record in moved)
