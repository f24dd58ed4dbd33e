"""The on-policy loop of the documentation goes on wherever it is killed."""

from __future__ import annotations

import json
import os
import signal

from pages import ROOT
from zygote import zygote

from hermes_queue.results.consumers import consumer_groups

SUPPORT = str(ROOT / "tests" / "support")
KILLS = ("enqueued:2", "sampled:2", "optimised:2", "loaded:3", "saved:2")
"""`loaded:3` is behind the second step."""


def test_the_documented_loop_goes_on_after_a_kill_at_each_of_its_steps(ledger, tmp_path):
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url, "PYTHONPATH": SUPPORT}
    for kill in (*KILLS, ""):
        arguments = [ledger.url, str(tmp_path), kill]
        with (tmp_path / "log").open("wb") as log:
            process = zygote().start("documented_trainer", arguments, environment, log, tmp_path)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
        said = kill, (tmp_path / "log").read_text()
        assert process.returncode == (-signal.SIGKILL if kill else 0), said
    state = json.loads((tmp_path / "checkpoint.json").read_text())
    assert state["step"] == 4
    assert len(set(state["groups"])) == len(state["groups"]) == 8
    assert consumer_groups(ledger) == []
