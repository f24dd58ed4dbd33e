"""A service that holds an agent's answer, on a real engine: graded, crashed, made to lie."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from container_engines import BASE
from harbor_tasks import write_task

from envs.base import Verdict
from hermes_plugins.harbor.env import ENV
from hermes_plugins.harbor.item import HarborItem
from hermes_queue.errors import SlotLost
from hermes_queue.sandbox.context import SlotContext

CONFIG = f"""\
[environment]
docker_image = "{BASE}"
network_mode = "no-network"
"""
SEPARATE = (
    'artifacts = [{ source = "/srv/answer", service = "keeper" }]\n'
    + CONFIG
    + '[verifier]\nenvironment_mode = "separate"\n'
    + '[[verifier.collect]]\nservice = "keeper"\ncommand = "cp /srv/memory /srv/answer"\n'
)
KEEPER = """\
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_PUT(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        if text == b"die":
            os._exit(1)
        open("/srv/memory", "wb").write(text)
        self.send_response(204)
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(open("/srv/memory", "rb").read())

HTTPServer(("", 80), Handler).serve_forever()
"""
COMPOSE = """\
services:
  keeper:
    build: keeper
    healthcheck:
      {test: 'python3 -c "import socket; socket.create_connection((\\"127.0.0.1\\", 80), 9)"',
       interval: 20s}
"""
ASK = """\
#!/bin/bash
answer=$(python3 -c 'import urllib.request as r; print(r.urlopen("http://keeper").read().decode())')
if [ "$answer" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""
LOOK = """\
#!/bin/bash
if [ "$(cat /srv/answer)" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""
PUT = (
    "python3 -c 'import urllib.request as r; "
    'r.urlopen(r.Request("http://keeper", data=b"{}", method="PUT"))\''
)
Play = Callable[..., Awaitable[Verdict]]


@pytest.fixture
def kind() -> str:
    """Podman has no services."""
    return "docker"


@pytest.fixture
def play(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_service: Any) -> Play:
    """Set a task up, let its agent run a command, and one in the service, and grade."""
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))

    async def run(
        command: str, mode: Any = None, inside: str = "", killed: bool = False, **files: str
    ) -> Verdict:
        folder = write_task(tmp_path / "task", **files)
        for name, text in {
            "docker-compose.yaml": COMPOSE,
            "keeper/Dockerfile": f"FROM {BASE}\nCOPY keeper.py /opt/\n"
            'RUN mkdir -p /srv && echo nothing >/srv/memory\nCMD ["python3", "/opt/keeper.py"]\n',
            "keeper/keeper.py": KEEPER,
        }.items():
            path = folder / "environment" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        item = await ENV.load(HarborItem(instance_id="i", task=str(folder), grading=mode))
        slot = await bench.backend.acquire("t", ENV.spec(item, "default"))
        context = SlotContext(bench.backend, slot, deadline=time.monotonic() + 600)
        await ENV.setup(item, context)
        done = await context.run(command)
        assert done.ok, done.output
        if inside:
            done = await (await context.service("keeper")).run(inside)
            assert done.ok, done.output
        if killed:
            await kill_service(context.slot, "keeper")
        verdict = await ENV.verify(item, context, [])
        await bench.backend.release(context.slot)
        return verdict

    return run


async def test_an_answer_in_a_service_is_kept_without_its_processes(play: Play) -> None:
    verdict = await play(PUT.format(42), "restart", config=CONFIG, test=ASK)
    assert (verdict.score, verdict.report["reason"]) == (1, "graded")


async def test_new_services_know_nothing_of_the_agents_answer(play: Play) -> None:
    verdict = await play(PUT.format(42), "transplant", config=CONFIG, test=ASK)
    assert (verdict.score, verdict.report["reason"]) == (0, "graded")


async def test_a_service_whose_program_was_changed_is_not_believed(play: Play) -> None:
    lie = 'sed -i \'s/open("\\/srv\\/memory", "rb").read()/b"42"/\' /opt/keeper.py'
    verdict = await play("true", "restart", lie, config=CONFIG, test=ASK)
    assert (verdict.score, verdict.report["reason"]) == (0, "suspect")
    assert verdict.report["suspect"] == ["keeper:/opt/keeper.py"]


async def test_a_verifier_of_its_own_gets_what_a_hook_took_from_a_service(play: Play) -> None:
    verdict = await play(PUT.format(42), config=SEPARATE, test=LOOK)
    assert (verdict.score, verdict.report["notes"]) == (1, [])


async def test_a_service_that_its_client_has_ended_costs_the_answer(play: Play) -> None:
    verdict = await play(f"{PUT.format('die')} || true; sleep 2", config=SEPARATE, test=LOOK)
    assert (verdict.score, verdict.report["reason"]) == (0, "graded")
    assert verdict.report["missing_artifacts"] == ["keeper:/srv/answer"]
    assert "service keeper ended with 1" in verdict.report["notes"][0]


@pytest.mark.parametrize("mode", ["restart", "transplant"])
async def test_nothing_is_measured_when_a_service_was_killed_from_outside(
    play: Play, mode: str
) -> None:
    with pytest.raises(SlotLost, match="killed from outside"):
        await play(PUT.format(42), mode, killed=True, config=CONFIG, test=ASK)
