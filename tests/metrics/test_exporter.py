"""The exporter tells what is in Redis, on both versions it must read."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import plugin
import pytest
from ledger_steps import begin, publish
from records import make_job, make_record
from redis_server import RedisServer, redis_binary_of

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.cli.exporter import Exporter
from hermes_queue.ledger import Breakers, Claim, Ledger
from hermes_queue.ledger.fleet.creations import FleetCreationGate
from hermes_queue.ledger.fleet.lanes import EndedAttempts, Watched
from hermes_queue.ledger.fleet.limiter import EndpointLimits
from hermes_queue.ledger.fleet.sandboxes import Sandboxes, SandboxRecord
from hermes_queue.models import AgentSpec
from hermes_queue.queues import quarantine_lane, queue_keys
from hermes_queue.results.consume import consume
from hermes_queue.sandbox.fleet import CreationRate
from hermes_queue.telemetry import metrics


@pytest.fixture(params=["redis-7", "redis-6.2"])
def deployment(request, tmp_path: Path):
    server = RedisServer(redis_binary_of(request.param), tmp_path / "r")
    try:
        server.start()
        with server.client(decode_responses=False) as client:
            yield Ledger(client, prefix="hq:", url=server.url)
    finally:
        server.close()


def read(ledger: Ledger) -> dict[metrics.Metric, dict]:
    return {
        m: dict(values) for m, values in Exporter(ledger, lanes=["idle"], scan_s=0.001).values()
    }


def test_lanes_are_found_with_depth_and_age_though_no_worker_serves_them(deployment):
    enqueue(
        [make_job("run", f"i{n}", lane="train", priority=n) for n in range(4)], ledger=deployment
    )
    enqueue([make_job("run2", "i", lane="eval")], ledger=deployment)
    early = make_job("run", "i3").trajectory_id
    deployment.client.zadd("hq:waiting", {early: time.time() - 100})
    found = read(deployment)
    assert found[metrics.LANE_DEPTH] == {
        ("eval", "first"): 1,
        ("eval", "retry"): 0,
        ("idle", "first"): 0,
        ("idle", "retry"): 0,
        ("train", "first"): 4,
        ("train", "retry"): 0,
    }
    ages = found[metrics.LANE_AGE_SECONDS]
    assert 100 <= ages["train",] < 160
    assert ages["idle",] == 0


def test_leases_runs_and_delayed_jobs_are_counted(deployment):
    jobs = [make_job("run", f"i{n}") for n in range(3)]
    enqueue(jobs, ledger=deployment)
    deployment.beat("w1", {"slots": 8, "lanes": ["train"]}, ttl_s=60)
    for number, junk in enumerate(("x", -3, 2.5, True, 1 << 40)):
        deployment.beat(f"odd{number}", {"slots": junk}, ttl_s=60)
    claims = [Claim(job.trajectory_id, begin(deployment, job).epoch) for job in jobs[:2]]
    deployment.requeue(claims[1], owner="w1", delay_s=600)
    found = read(deployment)
    assert found[metrics.SLOTS] == {("leased",): 1, ("free",): 7}
    assert found[metrics.DELAYED] == {(): 1}
    assert found[metrics.RUNS] == {
        ("active",): 1,
        ("paused",): 0,
        ("cancelled",): 0,
        ("done",): 0,
    }


def test_sandboxes_are_starting_running_or_leaked(deployment):
    sandboxes = Sandboxes(deployment)
    sandboxes.renew([SandboxRecord("a", "modal", "h", 0.0)], lease_s=60)
    sandboxes.renew([SandboxRecord("b", "modal", "h", 0.0)], lease_s=-1)
    rate = CreationRate(creates_per_s=100, max_starting=10)
    FleetCreationGate(deployment, "modal").take("t", rate)
    found = read(deployment)[metrics.SANDBOXES]
    assert {state: found["modal", state] for state in ("starting", "running", "leaked")} == {
        "starting": 1,
        "running": 1,
        "leaked": 1,
    }


def test_limits_say_what_is_allowed_leased_and_refused(deployment):
    limits = EndpointLimits(deployment)
    name = "http://h:1/v1|some|model"
    granted = [limits.acquire(name, f"r{n}") for n in range(3)]
    limits.release(name, "r0", "refused", granted_at=granted[0].at, among=1, pause_s=50)
    found = read(deployment)
    endpoint, model = "http://h:1/v1", "some|model"
    assert found[metrics.LIMIT][endpoint, model, "leased"] == 2
    assert found[metrics.LIMIT][endpoint, model, "limit"] > 0
    assert found[metrics.LIMIT_ANSWERS][endpoint, model, "refused"] == 1
    assert found[metrics.LIMIT_ANSWERS][endpoint, model, "granted"] == 3
    assert 0 < found[metrics.LIMIT_PAUSE][endpoint, model] <= 50


def test_a_lane_whose_breaker_is_open_is_paused(deployment):
    Breakers(deployment).record(Watched("train"), {"sandbox": EndedAttempts(50, "down")})
    deployment.beat("w1", {"slots": 1, "lanes": ["train"]}, ttl_s=60)
    assert read(deployment)[metrics.LANE_BREAKER] == {("idle",): 0, ("train",): 1}


def test_endpoints_that_are_held_in_a_lane_are_counted(deployment):
    agent = AgentSpec(kind="openai", model="m", base_url="http://a/v1")
    down = Watched.endpoint_of("train", agent)
    Breakers(deployment).record(down, {"model": EndedAttempts(50, "down")})
    deployment.beat("w1", {"slots": 1, "lanes": ["train"]}, ttl_s=60)
    found = read(deployment)
    assert found[metrics.LANE_ENDPOINTS_HELD] == {("idle",): 0, ("train",): 1}
    assert found[metrics.LANE_BREAKER] == {("idle",): 0, ("train",): 0}


def test_a_breaker_that_may_be_tried_wants_one_slot(deployment):
    enqueue([make_job("run", f"i{n}") for n in range(3)], ledger=deployment)
    Breakers(deployment).record(Watched("train"), {"sandbox": EndedAttempts(50, "down")})
    assert wants(deployment)["train"] == 0
    deployment.client.hset("hq:lane:train", "until", 1)
    assert wants(deployment)["train"] == 1


def wants(ledger: Ledger) -> dict[str, int]:
    lanes = json.loads(Exporter(ledger, lanes=["eval"], scan_s=0.001).scaling()[0])["lanes"]
    found = {name: lane["wanted_slots"] for name, lane in lanes.items()}
    metric = read(ledger)[metrics.LANE_WANTED]
    assert {name: metric[name,] for name in found if (name,) in metric} == {
        name: found[name] for name in found if (name,) in metric
    }
    return found


def test_jobs_that_only_a_worker_can_put_back_keep_one_wanted(deployment):
    job = make_job("run")
    enqueue([job], ledger=deployment)
    claim = Claim(job.trajectory_id, begin(deployment, job).epoch)
    deployment.client.delete(*(f"hq:{key}" for key in queue_keys("train").all))
    deployment.beat("w1", {"lanes": ["train"], "running_by_lane": {"train": 1}}, ttl_s=60)
    assert wants(deployment) == {"train": 1, "eval": 0}
    deployment.requeue(claim, owner="w1", delay_s=3600)
    deployment.beat("w1", {"lanes": ["train"]}, ttl_s=60)
    assert wants(deployment) == {"train": 1, "eval": 1}
    deployment.client.zrem("hq:delayed", job.trajectory_id)
    assert wants(deployment) == {"train": 0, "eval": 0}
    deployment.client.zadd("hq:paced", {"run": 1})
    assert wants(deployment) == {"train": 1, "eval": 1}


def test_suspects_that_wait_want_a_worker_of_their_lane(deployment):
    deployment.client.lpush(f"hq:{queue_keys(quarantine_lane('train', 64)).first[0]}", "x")
    deployment.beat("w1", {"lanes": ["train"]}, ttl_s=60)
    assert wants(deployment) == {"train": 1, "eval": 0}


def test_runs_that_nobody_can_read_take_no_metric_away(deployment):
    enqueue([make_job("good")], ledger=deployment)
    deployment.client.zadd("hq:runs", {b"\xff": 1, "string": 2, "words": 3, "state": 4})
    deployment.client.set("hq:run:string", "x")
    deployment.client.hset("hq:run:words", mapping={"state": "active", "total": "many"})
    deployment.client.hset("hq:run:state", mapping={"state": b"\xff", "total": "1"})
    assert sum(read(deployment)[metrics.RUNS].values()) == 1


@pytest.mark.parametrize("key", ["runs", "delayed", "waiting"])
def test_a_key_of_another_type_takes_only_its_own_part_away(deployment, key):
    enqueue([make_job("run")], ledger=deployment)
    deployment.client.delete(f"hq:{key}")
    deployment.client.set(f"hq:{key}", "x")
    found = read(deployment)
    assert (found[metrics.UP], found[metrics.STREAM_GROUPS]) == ({(): 1}, {(): 0})
    assert found[metrics.TRAJECTORIES] == {}


def test_a_plugin_adds_metrics_and_takes_none_away(ledger, tmp_path, monkeypatch):
    source = """
from hermes_queue.plugins import Plugin
from hermes_queue.telemetry.metrics import Metric

GREETED = Metric("exporter", "greeted_total", "Greetings.", ("whom",))

def read(ledger):
    yield GREETED, {("world",): ledger.client.scard(ledger.key("greeted"))}

PLUGIN = Plugin(name="theirs", purpose="Greets.", exported=("theirs:read",))
"""
    with plugin.installing(tmp_path, monkeypatch):
        plugin.install(tmp_path, "theirs", {"theirs.py": source}, "theirs:PLUGIN")
        ledger.client.sadd("hq:greeted", "a", "b")
        found = {metric.name: values for metric, values in read(ledger).items()}
        assert (found["greeted_total"], found["redis_up"]) == ({("world",): 2}, {(): 1})
        ledger.client.delete("hq:greeted")
        ledger.client.set("hq:greeted", "x")
        found = {metric.name: values for metric, values in read(ledger).items()}
        assert ("greeted_total" in found, found["redis_up"]) == (False, {(): 1})


def test_a_queue_that_is_no_list_hides_no_other_lane(deployment):
    enqueue([make_job("run")], ledger=deployment)
    deployment.client.sadd("hq:_kombu.binding.v1.bad", "x")
    deployment.client.set("hq:v1.bad", "x")
    assert wants(deployment) == {"train": 1, "eval": 0, "bad": 0}


async def test_a_consumer_group_is_behind_until_it_has_acknowledged(deployment):
    jobs = [make_job("run", f"i{n}") for n in range(3)]
    enqueue(jobs, ledger=deployment)
    for job in jobs:
        begin(deployment, job)
        publish(deployment, make_record(job))
    reading = consume("g", url=deployment.url, idle_timeout_s=0.5)
    first = await anext(reading)  # a page is given at once: all three are pending then
    found = read(deployment)
    assert found[metrics.CONSUMER_PENDING]["g",] == 3
    assert found[metrics.CONSUMER_AGE_SECONDS]["g",] > 0
    await first.ack()
    async for group in reading:
        await group.ack()
    later = [make_job("run", f"later{n}") for n in range(2)]
    enqueue(later, ledger=deployment)
    for job in later:
        begin(deployment, job)
        publish(deployment, make_record(job))
    await asyncio.sleep(0.01)
    found = read(deployment)
    assert found[metrics.CONSUMER_PENDING]["g",] == 0
    assert found[metrics.CONSUMER_BEHIND]["g",] == 2
    assert found[metrics.CONSUMER_AGE_SECONDS]["g",] > 0
    assert found[metrics.STREAM_GROUPS] == {(): 5}
    assert found[metrics.STREAM_BYTES][()] > 0


def test_counters_are_there_before_they_rise(deployment):
    found = read(deployment)
    assert found[metrics.RETRIES]["sandbox",] == 0
    assert found[metrics.COST_USD] == {(): 0}


def test_targets_are_the_workers_that_serve_metrics(deployment):
    facts = {"host": "h", "lanes": ["train"], "slots": 1}
    deployment.beat("w1", {**facts, "metrics": "h:9809"}, ttl_s=60)
    deployment.beat("w2", {**facts, "metrics": ""}, ttl_s=60)
    body, kind = Exporter(deployment, lanes=(), scan_s=60).targets()
    assert json.loads(body) == [{"targets": ["h:9809"], "labels": {"hermes_host": "h"}}]
    assert kind == "application/json"


def test_while_redis_is_away_only_that_is_told(redis_server, ledger):
    exporter = Exporter(ledger, lanes=(), scan_s=60)
    assert dict(exporter.values())[metrics.UP] == {(): 1.0}
    redis_server.kill9()
    assert list(exporter.values()) == [(metrics.UP, {(): 0.0})]
    redis_server.start()
    assert dict(exporter.values())[metrics.UP] == {(): 1.0}


def test_an_exporter_changes_nothing_in_redis(deployment):
    enqueue([make_job()], ledger=deployment)
    before = deployment.client.info("persistence")["rdb_changes_since_last_save"]
    read(deployment)
    after = deployment.client.info("persistence")["rdb_changes_since_last_save"]
    assert after == before
