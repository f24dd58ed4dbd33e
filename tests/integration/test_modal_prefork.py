"""Modal sandboxes from a Celery worker that forks: ids cross the fork, objects do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery_worker import eventually
from modal_server import localmodal, localmodal_server

__all__ = ["localmodal", "localmodal_server"]

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def facts(localmodal, redis_server, tmp_path):
    """Run tasks in a worker with two children; answers with what they tell."""
    env = os.environ | {
        "PREFORK_BROKER": redis_server.broker_url,
        "PREFORK_FACTS": redis_server.url,
        "PREFORK_CACHE": str(tmp_path),
        "PYTHONPATH": f"{Path(__file__).parents[2]}:{SUPPORT}",
    }
    command = [sys.executable, "-m", "celery", "-A", "prefork_jobs", "worker", "--pool", "prefork"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [*command, "-c", "2", "-l", "info"], env=env, cwd=tmp_path, stdout=out, stderr=out
        )
    app = Celery("client", broker=redis_server.broker_url)
    with redis_server.client() as client:

        def run(what, *tasks):
            for name, *args in tasks:
                app.send_task(name, args)

            def reported():
                assert worker.poll() is None, log.read_text()
                found = [json.loads(text) for text in client.lrange("facts", 0, -1)]
                found = [fact for fact in found if fact["what"] == what]
                return found if len(found) >= max(1, len(tasks)) else None

            return eventually(reported, timeout_s=90)

        try:
            yield run
        finally:
            app.close()
            worker.terminate()
            worker.wait(60)
            assert "Idle bookkeeping" not in log.read_text()


@pytest.mark.fleet
@pytest.mark.timeout(170)
def test_only_ids_cross_the_fork_of_a_prefork_worker(facts, localmodal):
    [parent] = facts("parent")
    assert localmodal.running() == [parent["sandbox"]]
    ran = facts("run", *(("run", f"hello-{n}") for n in range(4)))
    assert {fact["said"] for fact in ran} == {f"hello-{n}" for n in range(4)}
    assert parent["pid"] not in {fact["pid"] for fact in ran}
    [refused] = facts("inherited", ("inherited",))
    assert "was started before a fork" in refused["error"]
    [ended] = facts("end", ("end", parent["sandbox"]))
    assert (ended["known"], ended["left"]) == ([parent["sandbox"]], [])
    assert localmodal.running() == []
