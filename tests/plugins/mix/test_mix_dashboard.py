"""Every query of the mixes' dashboard, in a real Prometheus that scrapes a mix."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from live_prometheus import DEPLOY, answer, queries, running_prometheus
from mixes import write_mix
from ports import free_port
from worker_process import wait_until
from zygote import start_forked

pytestmark = pytest.mark.prometheus


def test_every_panel_answers_with_data_while_a_mix_is_served(
    redis_server, exporter: str, tmp_path: Path
) -> None:
    file = write_mix(tmp_path, {"a": "", "b": "weight = 2"}, head="backlog = {low = 2, high = 6}")
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": redis_server.url}
    process = start_forked("hermes_queue.cli", "mix", file, environment=environment)
    addresses = {"exporter:9808": exporter.removeprefix("http://")}
    waiting = dict(queries([DEPLOY / "grafana" / "dashboards" / "mix.json"]))
    assert len(waiting) == 5
    try:
        with running_prometheus(tmp_path / "prometheus", free_port(), addresses) as prometheus:

            def answered() -> bool:
                for where, query in list(waiting.items()):
                    with suppress(OSError):
                        if answer(prometheus, query):
                            del waiting[where]
                return not waiting

            wait_until("every panel has data", answered)
    finally:
        process.kill()
        process.communicate(timeout=30)
