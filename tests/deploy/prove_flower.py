"""Flower in a real Chromium, on a real worker: what it shows.

`make test-flower`. SCREENSHOTS=directory keeps the pages as pictures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compose_file import load
from guarded_redis import ROOT, GuardedRedis, free_port, password_of
from selenium import webdriver
from selenium.webdriver.common.by import By
from worker_process import WorkerProcess, wait_until

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
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
    """Its address, with the credentials in it. The command line is that of docker-compose.yml."""
    variables = {f"REDIS_{r.upper()}_PASSWORD": password_of(r) for r in ("flower", "producer")}
    names = ("WORKER", "CONSUMER", "MONITOR", "OPERATOR")
    variables |= {f"REDIS_{name}_PASSWORD": "x" for name in names}
    variables |= {"FLOWER_BASIC_AUTH": "admin:secret", "GRAFANA_PASSWORD": "x"}
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
        yield f"http://admin:secret@127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def page(flower: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.add_argument("--window-size=1280,900")
    service = webdriver.ChromeService(shutil.which("chromedriver") or "/usr/bin/chromedriver")
    browser = webdriver.Chrome(options=options, service=service)
    try:
        browser.get(flower)
        yield browser
    finally:
        browser.quit()


@pytest.fixture(scope="module")
def produce(guarded: GuardedRedis) -> Callable[..., None]:
    def run(*flags: str) -> None:
        command = [sys.executable, "-m", "producers.gsm8k", "--quiet", *flags]
        env = {**os.environ, "HERMES_QUEUE_REDIS_URL": guarded.url("producer")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    return run


def keep(page: webdriver.Chrome, name: str) -> None:
    if directory := os.environ.get("SCREENSHOTS"):
        page.save_screenshot(str(Path(directory) / f"flower-{name}.png"))


def show(page: webdriver.Chrome, flower: str, path: str, text: str) -> str:
    """Open a page of Flower and wait until it says `text`; returns all of its text."""

    def said() -> str:
        page.get(flower + path)
        try:
            wait_until("", lambda: text in page.find_element(By.TAG_NAME, "body").text, timeout_s=3)
        except AssertionError:
            return ""
        return page.find_element(By.TAG_NAME, "body").text

    return wait_until(f"{path} says {text}", said)


def test_tasks_have_the_name_of_their_env_and_short_arguments(page, flower, worker, produce):
    produce("--items", "3", "--run-id", "shown")
    text = show(page, flower, "/tasks", "SUCCESS")
    assert "trajectory.gsm8k" in text
    assert "gsm8k:" in text
    assert "#0" in text
    keep(page, "tasks")


def test_the_state_of_a_running_task_is_its_stage(page, flower, worker, produce):
    produce("--items", "1", "--run-id", "slow", *SLOW)
    show(page, flower, "/tasks", "AGENT")
    keep(page, "stages")


def test_events_and_runtimes_are_metrics_with_names_of_envs_and_long_buckets(flower, worker):
    port = flower.rpartition(":")[2]
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert 'type="task-agent"' in text
    lines = [line for line in text.splitlines() if "task_runtime_seconds_bucket" in line]
    assert any('le="7200.0"' in line and "trajectory.gsm8k" in line for line in lines)
