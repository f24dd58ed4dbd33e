"""Every service of docker-compose.yml that is ours, as a process, with its own command line.

`make test-compose`. Addresses and directories of the containers are replaced, nothing else.
Prometheus is Debian's. Not started is Grafana: Debian has none; `make test-prometheus` asks what
its dashboards ask.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

import redis
from compose_stack import GRACE_S, Stack
from worker_process import wait_until


def lock_of(stack: Stack) -> int:
    password = stack.variables["REDIS_OPERATOR_PASSWORD"]
    url = f"redis://operator:{password}@127.0.0.1:{stack.ports['6379']}/0"
    with redis.Redis.from_url(url) as client:
        return int(client.exists("hq:sink:atropos"))


def test_the_servers_own_check_of_its_health_passes(stack):
    test = stack.file["services"]["redis"]["healthcheck"]["test"][1]
    port = stack.ports["6379"]
    env = {**stack.variables, "PATH": "/usr/bin:/bin"}
    checked = test.replace("redis-cli", f"redis-cli -p {port}")
    assert subprocess.run(["sh", "-c", checked], env=env, check=False).returncode == 0
    broken = {**env, "REDIS_MONITOR_PASSWORD": "wrong"}
    assert subprocess.run(["sh", "-c", checked], env=broken, check=False).returncode != 0


def test_jobs_flow_from_the_producer_through_two_workers_to_the_sink_and_flower_shows_them(stack):
    stack.start_factory()

    sent = stack.run("producer")
    assert sent.returncode == 0, sent.stderr
    shown = stack.run("cli")
    assert shown.returncode == 0, shown.stderr
    wait_until("the run is done", lambda: " done" in stack.run("cli").stdout, timeout_s=150)

    assert stack.get("5555", "/tasks")[0] == 401
    assert stack.get("5555", "/api/tasks", "admin:wrong")[0] == 401
    user = stack.variables["FLOWER_BASIC_AUTH"]
    status, tasks = stack.get("5555", "/api/tasks", user)
    assert status == 200
    assert tasks.count("SUCCESS") >= 2, tasks

    wait_until("Prometheus has read all five", lambda: len(stack.read_by_prometheus()) == 5)
    query = "/api/v1/query?query=hermes_queue_trajectories_total"
    wait_until("and knows what was scored", lambda: '"scored"' in stack.get("9090", query)[1])
    assert stack.services.pop("prometheus").stop(30) == 0
    assert stack.services.pop("exporter").stop(30) == 0

    assert stack.services["sink"].stop(60) == 0, stack.services["sink"].log
    assert [row["score"] for row in stack.rows()] == [1.0, 1.0]
    for name in ("worker", "first-worker"):
        assert stack.services.pop(name).stop(GRACE_S) == 0
    assert stack.services.pop("flower").stop(30) in (0, -15)
    assert (stack.directory / "flower").iterdir()


def asked(stack: Stack, path: str, label: dict[str, str] | None = None) -> Any:
    """What the viewer answers to whoever has the token of .env."""
    request = urllib.request.Request(f"http://127.0.0.1:{stack.ports['9820']}{path}")
    request.add_header("Authorization", f"Bearer {stack.variables['HERMES_QUEUE_VIEW_TOKEN']}")
    if label is not None:
        request.data = json.dumps(label).encode()
        request.add_header("Content-Type", "application/json")
        request.add_header("X-HQ-Request", "1")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def labels(stack: Stack) -> dict[str, str]:
    found = asked(stack, "/api/reviews")["reviews"]
    return {each["trajectory_id"]: each["label"] for each in found}


def test_the_viewer_shows_what_was_made_and_keeps_labels_when_it_is_started_anew(stack):
    service = stack.start("view")
    wait_until("the viewer answers", lambda: stack.get("9820", "/api/session")[0] == 200)
    check = stack.file["services"]["view"]["healthcheck"]["test"]
    moved = check[-1].replace("9820", stack.ports["9820"])
    assert subprocess.run([sys.executable, "-c", moved]).returncode == 0
    assert stack.get("9820", "/api/runs")[0] == 401
    assert stack.variables["HERMES_QUEUE_VIEW_TOKEN"] not in service.log

    wait_until("both are listed", lambda: len(asked(stack, "/api/trajectories")["rows"]) == 2)
    first, second = asked(stack, "/api/trajectories")["rows"]
    shown = asked(stack, f"/api/t/{first['id']}")
    assert (shown["row"]["score"], shown["row"]["reason"]) == (1.0, "resolved")
    overview = asked(stack, "/api/overview")
    assert overview["redis"]["version"]

    given = {"trajectory_id": second["id"], "label": "cheating", "note": "seen by nobody"}
    assert asked(stack, "/api/reviews", given)["label"] == "cheating"
    assert labels(stack) == {second["id"]: "cheating"}
    assert service.stop(10) == 0, service.log
    service = stack.start("view")
    wait_until("it answers again", lambda: stack.get("9820", "/api/session")[0] == 200)
    assert labels(stack) == {second["id"]: "cheating"}
    found = asked(stack, "/api/trajectories?q=reviewed:cheating")["rows"]
    assert [row["id"] for row in found] == [second["id"]]
    assert service.stop(10) == 0, service.log


def test_the_atropos_profile_starts_its_server_and_the_sink_registers_there(stack):
    stack.start("atropos")
    wait_until("atropos answers", lambda: stack.get("8000", "/")[0] == 200)
    stack.start("atropos-sink")
    sink = stack.services["atropos-sink"]
    wait_until("it has its lock", lambda: lock_of(stack) == 1)
    assert sink.process
    assert sink.process.poll() is None, sink.log
    assert sink.stop(60) == 0, sink.log
