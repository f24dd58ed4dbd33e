"""Every query of every panel, and every alert, in a real Prometheus that scrapes a real run."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint, completion
from live_prometheus import DEPLOY, answer, queries, running_prometheus
from ports import free_port
from records import make_job
from scrape import fetch, worker_endpoint
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.scheduling import Shares
from hermes_queue.results.consume import consume
from hermes_queue.settings import MetricsSettings
from hermes_queue.sinks.metering import metered

pytestmark = pytest.mark.prometheus

DASHBOARDS = [DEPLOY / "grafana" / "dashboards" / f"{name}.json" for name in ("factory", "models")]
"""Plugins have dashboards of their own."""
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
GIVE_UP_S = 90


def handler():
    """An endpoint that refuses every fifth call."""
    numbers = itertools.count(1)

    def answered(path, body):
        if next(numbers) % 5 == 0:
            return 429, {"error": {"message": "slow down"}}
        return completion("\\boxed{24}", prompt_tokens=900)

    return answered


@asynccontextmanager
async def running_sink(redis_url: str) -> AsyncIterator[int]:
    """A sink that stores everything; yields its port."""
    ports: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        with metered("memory", MetricsSettings(sink_port=0)) as meter:
            ports.set_result(meter.port)
            async for group in consume("archive", url=redis_url):
                meter.stored([group], len(group.members))
                await group.ack()

    task = asyncio.create_task(run())
    try:
        yield await ports
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def batch(number: int, base_url: str) -> list:
    """A little of everything: answers of a model, tool calls, retries, failures."""
    run_id = f"run{number}"
    model = {
        "kind": "openai",
        "model": "m",
        "base_url": base_url,
        "params": {"probe_tools": False},
    }
    flaky = {"kind": "flaky_agent:flaky", "params": {"failures": 1}}
    return [
        *(make_job(run_id, f"m{n}", item=ROW, agent=model) for n in range(4)),
        *(make_job(run_id, f"o{n}", item=ROW) for n in range(2)),
        make_job(run_id, "f", item=ROW, agent=flaky),
        make_job(run_id, "x", item={"question": "?"}),
    ]


@pytest.mark.timeout(300)
async def test_every_panel_answers_with_data_during_a_run(
    redis_server, ledger, start_worker, exporter, tmp_path
):
    prices = tmp_path / "prices.toml"
    prices.write_text("[m]\nprompt = 1\ncompletion = 2\n")
    worker = await asyncio.to_thread(
        start_worker,
        HERMES_QUEUE_MODEL_PRICES=str(prices),
        HERMES_QUEUE_RETRY_BACKOFF_S="0.1",
    )
    SharedBudgets(ledger).set("env:gsm8k", {"tokens": 1e12})
    Shares(ledger).change("env", "gsm8k", {"max_running": 1000})
    async with ChatEndpoint(handler()) as endpoint, running_sink(redis_server.url) as sink_port:
        addresses = {
            "exporter:9808": exporter.removeprefix("http://"),
            "sink:9810": f"127.0.0.1:{sink_port}",
            "flower:5555": worker_endpoint(ledger, worker.process.pid).split("/")[2],
        }
        with running_prometheus(tmp_path / "prometheus", free_port(), addresses) as prometheus:
            open_queries = dict(queries(DASHBOARDS))
            assert len(open_queries) == len(queries(DASHBOARDS)) > 40

            def ask_all() -> bool:
                for where, query in list(open_queries.items()):
                    with suppress(OSError):
                        if answer(prometheus, query):
                            del open_queries[where]
                return not open_queries

            for number in range(GIVE_UP_S):
                await asyncio.to_thread(enqueue, batch(number, endpoint.url), ledger=ledger)
                if await asyncio.to_thread(ask_all):
                    break
                await asyncio.sleep(1)
            assert open_queries == {}
            await asyncio.to_thread(check_rules, prometheus)


def check_rules(prometheus: str) -> None:
    """Prometheus has evaluated all of our alerts without an error."""

    def rules() -> list[dict]:
        groups = json.loads(fetch(f"{prometheus}/api/v1/rules"))["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else []

    found = wait_until("rules evaluated", rules)
    assert {rule["name"] for rule in found if rule["health"] != "ok"} == set()
    assert len(found) == (DEPLOY / "prometheus-rules.yml").read_text().count("alert:")


def test_alerts_fire_when_they_should_and_not_before():
    rules = Path(__file__).parent / "alerts_test.yml"
    result = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_accepts_configuration_and_rules():
    command = ["promtool", "check", "config", DEPLOY / "prometheus.yml"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
