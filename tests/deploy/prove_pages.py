"""200 trajectories through all services of docker-compose.yml, with every page open meanwhile.

`make test-pages`. SCREENSHOTS=directory keeps the pages as pictures.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import chromium, keep
from compose_file import ROOT, Service
from compose_stack import Stack
from rich.console import Console
from rich.text import Text
from selenium import webdriver
from selenium.webdriver.common.by import By
from worker_process import wait_until

RUN = "pages"
ITEMS, GROUP_SIZE = 4, 50
TRAJECTORIES = ITEMS * GROUP_SIZE
COLUMNS, LINES = 100, 30
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))


class Top:
    """`hermes-queue top` in a terminal, from its start until it is closed."""

    def __init__(self, stack: Stack) -> None:
        service = Service(stack.file["services"]["cli"], stack.moves)
        own, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from hermes_queue.cli import main; main()", "top"],
            env={**os.environ, **service.environment, "TERM": "xterm-256color"},
            cwd=ROOT,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        self._terminal = own
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._said += os.read(self._terminal, 65536)
            except OSError:  # the other end was closed
                return

    def frames(self) -> list[str]:
        """All that were drawn, as text."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._said.decode(errors="replace"))
        return plain.split("hermes-queue ")[1:]

    def close(self) -> int:
        """Press q; the exit code."""
        os.write(self._terminal, b"q")
        try:
            return self._process.wait(20)
        finally:
            self._process.kill()
            os.close(self._terminal)


@pytest.fixture
def top(stack: Stack) -> Iterator[Top]:
    running = Top(stack)
    try:
        yield running
    finally:
        if running._process.poll() is None:
            running.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    browser = chromium(tmp_path / "profile")
    try:
        yield browser
    finally:
        browser.quit()


def text_of(page: webdriver.Chrome) -> str:
    return str(page.find_element(By.TAG_NAME, "body").text)


def queries() -> list[str]:
    """Those of all panels, with Grafana's variables filled in."""
    return [
        target["expr"].replace("$__rate_interval", "30s").replace("$__range", "10m")
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def ask(stack: Stack, query: str) -> list[float]:
    """Prometheus' values."""
    status, text = stack.get("9090", f"/api/v1/query?query={urllib.parse.quote(query)}")
    assert status == 200, query
    return [float(each["value"][1]) for each in json.loads(text)["data"]["result"]]


def picture_of_top(stack: Stack, page: webdriver.Chrome, directory: Path) -> None:
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "FORCE_COLOR": "1"}
    frame = stack.run("cli", "hermes-queue", "top", "--once", **size, TERM="xterm-256color")
    assert frame.returncode == 0, frame.stderr
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text.from_ansi(frame.stdout))
    picture = directory / "top.svg"
    picture.write_text(console.export_svg(title="hermes-queue top"))
    page.get(picture.as_uri())
    keep(page, "top")


@pytest.mark.timeout(900)
def test_every_page_shows_a_run_of_200_and_disturbs_none_of_it(stack, top, page, tmp_path):
    stack.start_factory()
    wait_until("Prometheus reads all five", lambda: len(stack.read_by_prometheus()) == 5)
    user = stack.variables["FLOWER_BASIC_AUTH"]
    flower = f"http://127.0.0.1:{stack.ports['5555']}"
    metrics = f"http://127.0.0.1:{stack.ports['9090']}"
    page.get(flower.replace("//", f"//{user}@") + "/")
    pages = {
        "workers": (f"{flower}/workers", "celery@"),
        "tasks": (f"{flower}/tasks", "trajectory.swe_smith"),
        "broker": (f"{flower}/broker", "v1.train"),
        "targets": (f"{metrics}/classic/targets", "hermes-queue-workers"),  # Debian's has no other
    }
    windows = {"workers": page.current_window_handle}
    for name in list(pages)[1:]:
        page.switch_to.new_window("tab")
        windows[name] = page.current_window_handle

    flags = ["--items", str(ITEMS), "--group-size", str(GROUP_SIZE), "--agent", "oracle"]
    command = ["python", "-m", "producers.swe_smith", *flags, "--run-id", RUN, "--quiet"]
    sent = stack.run("producer", *command)
    assert sent.returncode == 0, sent.stderr

    seen: Counter[str] = Counter()
    answered: Counter[str] = Counter()

    def look() -> bool:
        for name, (url, expected) in pages.items():
            page.switch_to.window(windows[name])
            page.get(url)
            wait_until(f"{url} says {expected}", lambda text=expected: text in text_of(page))
            seen[name] += 1
        for query in queries():
            answered[query] += bool(ask(stack, query))
        shown = stack.run("cli", "hermes-queue", "status", RUN, "--json")
        assert shown.returncode == 0, shown.stderr
        counts = json.loads(shown.stdout)
        if counts["finished"] >= TRAJECTORIES // 2 and not seen["pictures"]:
            seen["pictures"] += 1
            for name, window in windows.items():
                page.switch_to.window(window)
                keep(page, f"run-{name}")
            page.switch_to.new_window("tab")
            picture_of_top(stack, page, tmp_path)
            page.close()
        return bool(counts["finished"] + counts["failed"] == TRAJECTORIES)

    wait_until("all are measured", look, timeout_s=900)
    assert min(seen[name] for name in pages) >= 5
    assert seen["pictures"] == 1

    # What each of them says in the end.
    wait_until("top says so", lambda: f"{TRAJECTORIES}/{TRAJECTORIES}" in top.frames()[-1])
    assert len(top.frames()) > 20
    assert top.close() == 0
    scored = 'sum(hermes_queue_trajectories_total{outcome="scored"})'
    wait_until("Prometheus says so", lambda: ask(stack, scored) == [TRAJECTORIES])
    text = stack.get("5555", "/metrics")[1]
    ended = re.findall(r'^flower_events_total\{.*type="task-succeeded".*\} (\S+)$', text, re.M)
    assert sum(map(float, ended)) == TRAJECTORIES
    sink = stack.services["sink"]
    read = 'hermes_queue_consumer_behind_groups{group=~"sink.*"} == 0'
    wait_until("the sink has read them all", lambda: ask(stack, read) == [0])
    assert sink.stop(60) == 0, sink.log
    rows = stack.rows()
    assert len(rows) == TRAJECTORIES
    assert len({row["trajectory_id"] for row in rows}) == TRAJECTORIES
    assert {row["score"] for row in rows} == {1.0}
    print(json.dumps({"pages": seen, "frames": len(top.frames())}))
