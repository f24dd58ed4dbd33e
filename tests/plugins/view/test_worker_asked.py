"""A real worker is asked what an agent does, and does what the pages tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from records import make_job
from redis_server import RedisServer
from worker_process import closing_workers, wait_until

from hermes_plugins.view.actions import ACTIONS
from hermes_plugins.view.actions.base import Acting
from hermes_plugins.view.actions.workers import OfWorker, WorkerSize
from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.transcripts import Transcripts
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger, Runs

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
AGENT = {"kind": "slow", "params": {"seconds": 0.5, "turns": 20}}


def follow(transcripts: Transcripts, trajectory_id: str, start: int) -> Mapping[str, Any] | None:
    """What the worker says of a trajectory, once it has messages from number `start` on."""
    try:
        said = transcripts.after(trajectory_id, start)
    except Refusal:  # asked too often
        return None
    return said if said["messages"] else None


@pytest.mark.fleet
def test_pages_follow_an_agent_and_act_on_its_worker(
    redis_server: RedisServer, ledger: Ledger, tmp_path: Path
) -> None:
    with closing_workers(redis_server.url, tmp_path / "workers") as start_worker:
        start_worker(concurrency=1, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0")
        job = make_job("run", "i0", item=ROW, agent=AGENT)
        enqueue([job], ledger=ledger)
        followed = Transcripts(ledger, redis_server.url)
        said = wait_until("a turn", lambda: follow(followed, job.trajectory_id, 1))
        Runs(ledger).pause("run")  # so that it runs as long as this test wants
        [worker] = ledger.workers()
        name = worker["name"]
        assert (said["source"], said["worker"], said["stage"]) == ("worker", name, "agent")
        assert said["next"] == said["total"] == 1 + len(said["messages"])
        assert [each["n"] for each in said["messages"]] == list(range(1, said["next"]))
        acting = Acting(ledger, redis_server.url, "by ada", lambda: False)
        for action in ("worker_pause", "worker_resume"):
            assert ACTIONS[action].act(acting, OfWorker(worker=name)) == 1
        ACTIONS["worker_size"].act(acting, WorkerSize(worker=name, concurrency=2, slots=1))
        with pytest.raises(ConfigurationError, match="no live worker"):
            ACTIONS["worker_drain"].act(acting, OfWorker(worker="celery@nowhere"))
