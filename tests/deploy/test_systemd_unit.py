"""The unit of systemd names settings that exist, and lets a worker end in its own time."""

from __future__ import annotations

import re

from kubernetes_files import ROOT

from hermes_queue.settings import check_environment, sections, variable_names

UNIT = (ROOT / "deploy/systemd/hermes-queue-worker@.service").read_text("utf-8")
SETTINGS = dict(re.findall(r"^Environment=(HERMES_QUEUE_\w+)=(.*)$", UNIT, re.MULTILINE))


def test_its_settings_are_accepted(monkeypatch):
    assert set(SETTINGS) <= set(variable_names(sections()))
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    check_environment()


def test_a_worker_drains_before_it_is_killed():
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop_s) >= float(SETTINGS["HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S"]) + 60
    assert "KillMode=mixed" in UNIT
