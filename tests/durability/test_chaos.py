"""A fifth of a minute of `make chaos`; the real one takes five and more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record
from zygote import run_forked

from tests.chaos.__main__ import drain


@pytest.mark.fleet
@pytest.mark.timeout(560)
@pytest.mark.parametrize(
    "stages", [[], ["--graders", "1", "--prefetch", "1"]], ids=["whole", "with-graders"]
)
def test_nothing_is_lost_doubled_or_left_behind_when_everything_is_killed(stages):
    command = [sys.executable, "-m", "tests.chaos", "--json", "--minutes", "0.2"]
    command += ["--interval", "2", "--workers", "2", "--concurrency", "4", "--rate", "1", *stages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert result["trajectories"] == result["expected"] == 48
    assert result["kills"] > 0


def test_help_says_what_it_does_and_how_to_run_it():
    shown = run_forked("tests.chaos", "--help").stdout
    assert "Exit code 1 when anything was lost" in " ".join(shown.split())
    assert "--minutes 10 --seed 7" in shown


def test_a_run_is_drained_only_when_no_message_is_left_to_be_redelivered(ledger, monkeypatch):
    class Redelivered:
        """The killed worker's message comes back, and is acknowledged, at the second look."""

        looks = 0

        def watch(self):
            self.looks += 1
            if self.looks == 2:
                ledger.client.delete("hq:unacked")

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    job = make_job("chaos")
    enqueue(ledger, job)
    begin(ledger, job)
    publish(ledger, make_record(job))
    ledger.client.xgroup_create("hq:results", "fast", id="$")
    ledger.client.hset("hq:unacked", "tag", "message")
    producer = SimpleNamespace(alive=False)
    fleet = SimpleNamespace(connect=lambda: ledger, producer=producer, lease_s=1.0)
    schedule = Redelivered()
    assert drain(fleet, schedule, groups=1)
    assert schedule.looks == 2
