"""Flower in a real Chromium, on a real worker: what it shows, and what its buttons do.

`make test-flower`. SCREENSHOTS=directory keeps the pages as pictures.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from browser import chromium, keep
from celery import Celery
from compose_file import load
from guarded_redis import ROOT, GuardedRedis, password_of
from ports import free_port
from selenium import webdriver
from selenium.webdriver.common.by import By
from worker_process import WorkerProcess, wait_until

from hermes_queue.broker.pool.running import STAGE_EVENT
from hermes_queue.queues import RUN_TRAJECTORY

SLOW = ("--agent", "slow", "--agent-param", "seconds=300")


@pytest.fixture(scope="module")
def worker(guarded: GuardedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    process = WorkerProcess(
        guarded.url("worker"),
        tmp_path_factory.mktemp("worker"),
        concurrency=2,
        HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="1",
    )
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture(scope="module")
def flower(guarded: GuardedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. The command line is that of docker-compose.yml."""
    variables = {f"REDIS_{r.upper()}_PASSWORD": password_of(r) for r in ("flower", "producer")}
    names = ("WORKER", "CONSUMER", "MONITOR", "VIEWER", "OPERATOR")
    variables |= {f"REDIS_{name}_PASSWORD": "x" for name in names}
    variables |= {"FLOWER_BASIC_AUTH": "admin:secret", "GRAFANA_PASSWORD": "x"}
    variables |= {"HERMES_QUEUE_VIEW_TOKEN": "x"}
    port = free_port()
    directory = tmp_path_factory.mktemp("flower")
    moves = {"0.0.0.0": "127.0.0.1", "5555": str(port), "/var/lib/flower": str(directory)}
    command = load(variables)["services"]["flower"]["command"]
    for old, new in moves.items():
        command = [part.replace(old, new) for part in command]
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HERMES_QUEUE_REDIS_URL": guarded.url("flower"),
        "FLOWER_BASIC_AUTH": "admin:secret",
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=5))
        except OSError:
            return False

    try:
        wait_until("flower answers", answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def page(flower: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    browser = chromium(tmp_path_factory.mktemp("profile"))
    try:
        # As if they had been typed in: of an address with credentials, scripts inherit them, which
        # are then sent only when asked for, and Flower's API does not ask.
        browser.get(flower.replace("//", "//admin:secret@") + "/")
        yield browser
    finally:
        browser.quit()


@pytest.fixture(scope="module")
def operator(guarded: GuardedRedis) -> Iterator[redis.Redis]:
    with guarded.client("operator") as client:
        yield client


@pytest.fixture(scope="module")
def produce(guarded: GuardedRedis) -> Callable[..., None]:
    def run(*flags: str) -> None:
        command = [sys.executable, "-m", "producers.gsm8k", "--quiet", *flags]
        env = {**os.environ, "HERMES_QUEUE_REDIS_URL": guarded.url("producer")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    return run


def text_of(page: webdriver.Chrome) -> str:
    """All of its text as it is seen: headings in capitals."""
    text: str = page.find_element(By.TAG_NAME, "body").text
    return text


def show(page: webdriver.Chrome, flower: str, path: str, text: str) -> str:
    """Open a page of Flower and wait until it says `text`; returns all of its text."""

    def found() -> str:
        page.get(flower + path)
        try:
            wait_until("", lambda: text.casefold() in text_of(page).casefold(), timeout_s=3)
        except AssertionError:
            return ""
        return text_of(page)

    return wait_until(f"{path} says {text}", found)


def node(worker: WorkerProcess) -> str:
    """Celery's name of the worker."""
    return f"{worker.log_path.stem}-{os.getpid()}@{socket.gethostname()}"


def ask(guarded: GuardedRedis, worker: WorkerProcess, command: str, **arguments: Any) -> Any:
    """What the worker answers to remote control; {} when it does not in time."""
    with Celery(broker=guarded.url("operator"), set_as_current=False) as app:
        app.conf.broker_transport_options = {"global_keyprefix": "hq:"}
        answers = app.control.broadcast(
            command, arguments, destination=[node(worker)], reply=True, timeout=5
        )
    return answers[0][node(worker)] if answers else {}


def slots(guarded: GuardedRedis, worker: WorkerProcess) -> tuple[int, int, int]:
    """Concurrency, trajectories that run, and slots of the sandbox backend that are leased."""
    answer = ask(guarded, worker, "slots")
    return tuple(answer.get(name, -1) for name in ("concurrency", "running", "leased_slots"))


def wait_for_text(page: webdriver.Chrome, text: str) -> None:
    """Wait for Flower's own answer to a button."""
    try:
        wait_until(text, lambda: text in text_of(page), timeout_s=30)
    except AssertionError:
        keep(page, "flower-unexpected")
        raise


def running(operator: redis.Redis, run_id: str) -> list[str]:
    leased: Any = operator.zrange("hq:leases", 0, -1)
    return [found for found in leased if found.startswith(f"{run_id}.")]


def set_rate(page: webdriver.Chrome, flower: str, worker: WorkerProcess, per_s: int) -> None:
    """By the button of the worker's page."""
    show(page, flower, f"/worker/{node(worker)}", "Pool controls")
    page.find_element(By.ID, "worker-tab-limits").click()
    table = page.find_element(By.ID, "limits-table")
    wait_until("limits are shown", table.is_displayed)
    rows = table.find_elements(By.TAG_NAME, "tr")
    [row] = [found for found in rows if RUN_TRAJECTORY in found.text]
    row.find_element(By.TAG_NAME, "input").send_keys(str(per_s))
    row.find_element(By.CSS_SELECTOR, "[id^=task-rate-limit]").click()
    wait_for_text(page, "new rate limit set successfully")


def stop(guarded: GuardedRedis, run_id: str) -> None:
    """Cancel a run."""
    command = [sys.executable, "-m", "hermes_queue.cli", "run", "cancel", run_id, "--yes"]
    env = {**os.environ, "HERMES_QUEUE_REDIS_URL": guarded.url("operator")}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)


def test_tasks_have_the_name_of_their_env_and_short_arguments(page, flower, worker, produce):
    produce("--items", "3", "--run-id", "shown")
    text = show(page, flower, "/tasks", "SUCCESS")
    assert "trajectory.gsm8k" in text
    assert "gsm8k:" in text
    assert "#0" in text
    keep(page, "flower-tasks")


def test_a_running_task_shows_its_stage(page, flower, worker, produce):
    produce("--items", "1", "--run-id", "slow", *SLOW)
    text = show(page, flower, "/tasks", "stage: agent")
    assert "STARTED" in text
    keep(page, "flower-stages")


def test_events_and_runtimes_are_metrics_with_names_of_envs_and_long_buckets(flower, worker):
    port = flower.rpartition(":")[2]
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert f'type="{STAGE_EVENT}"' in text
    lines = [line for line in text.splitlines() if "task_runtime_seconds_bucket" in line]
    assert any('le="7200.0"' in line and "trajectory.gsm8k" in line for line in lines)


def test_terminate_ends_a_running_trajectory_and_its_run_hears_of_it(page, flower, operator):
    [trajectory] = running(operator, "slow")
    show(page, flower, f"/task/{trajectory}.1", "STARTED")
    keep(page, "flower-terminate")
    page.find_element(By.ID, "task-terminate").click()
    wait_for_text(page, f"Revoked '{trajectory}.1'")
    wait_until("it is final", lambda: operator.hget(f"hq:traj:{trajectory}", "state") == "final")
    assert operator.hget("hq:run:slow", "failed") == "1"
    assert running(operator, "slow") == []


def test_grow_and_shrink_change_the_pool_and_the_slots_of_the_sandbox(
    page, flower, worker, guarded, produce
):
    produce("--items", "6", "--run-id", "more", *SLOW)
    wait_until("two run", lambda: slots(guarded, worker) == (2, 2, 2))
    show(page, flower, f"/worker/{node(worker)}", "Pool controls")
    page.find_element(By.ID, "worker-pool-grow").click()
    wait_for_text(page, "Growing")
    wait_until("a third runs in a slot of its own", lambda: slots(guarded, worker) == (3, 3, 3))
    keep(page, "flower-worker")
    page.find_element(By.ID, "worker-pool-shrink").click()
    wait_for_text(page, "Shrinking")
    wait_until("it shrank", lambda: slots(guarded, worker) == (2, 3, 3))
    with guarded.client("operator") as client:
        first, *_ = running(client, "more")
    show(page, flower, f"/task/{first}.1", "STARTED")
    page.find_element(By.ID, "task-terminate").click()
    wait_until("no fourth takes its place", lambda: slots(guarded, worker) == (2, 2, 2))


def test_the_rate_limit_button_limits_the_rate(page, flower, worker, guarded, operator, produce):
    stop(guarded, "more")
    wait_until("the worker is idle", lambda: slots(guarded, worker)[1] == 0)
    set_rate(page, flower, worker, 1)
    keep(page, "flower-limits")
    assert any("rate_limit=1" in name for name in ask(guarded, worker, "registered"))
    began = time.monotonic()
    produce("--items", "6", "--run-id", "limited")
    wait_until("all ran", lambda: operator.hget("hq:run:limited", "finished") == "6")
    assert time.monotonic() - began > 3.0  # one a second, and the first at once


def test_revoke_ends_a_task_that_waits(page, flower, worker, guarded, operator, produce):
    # Flower offers it for what a worker holds and has not begun: here because of its rate. What is
    # held because of an earlier rate goes on with that, and would have one of these jobs begin.
    wait_until("nothing is held", lambda: ask(guarded, worker, "reserved") == [])
    ask(guarded, worker, "rate_limit", task_name=RUN_TRAJECTORY, rate_limit="1/m")
    produce("--items", "2", "--run-id", "waits")
    wait_until("one ran", lambda: operator.hget("hq:run:waits", "finished") == "1")
    [left] = [i for i in operator.zrange("hq:waiting", 0, -1) if i.startswith("waits.")]
    show(page, flower, f"/task/{left}.1", "RECEIVED")
    page.find_element(By.ID, "task-revoke").click()
    wait_for_text(page, f"Revoked '{left}.1'")
    wait_until("the worker knows", lambda: f"{left}.1" in ask(guarded, worker, "revoked"))
    set_rate(page, flower, worker, 0)
    produce("--items", "1", "--run-id", "after")
    # Two messages at most are held, until their minutes are over.
    wait = partial(wait_until, timeout_s=240)
    wait("a later one ran", lambda: operator.hget("hq:run:after", "finished") == "1")
    wait("it has ended", lambda: operator.hget("hq:run:waits", "failed") == "1")
    assert operator.hget(f"hq:traj:{left}", "state") == "final"
    show(page, flower, f"/task/{left}.1", "REVOKED")
