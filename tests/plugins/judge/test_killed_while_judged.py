"""A worker that ends, however, while a judge thinks about what it has measured."""

from __future__ import annotations

import json
import re
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import completion
from openai_stub import openai_stub
from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger.runs import Runs
from hermes_queue.models import TrajectoryJob

SUPPORT = {"PYTHONPATH": str(Path(__file__).parent / "support")}
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
REPLAY = {"kind": "replay", "params": {"messages": [{"role": "assistant", "content": "#### 24"}]}}
UNFINISHED = "the attempt was ended before the judge had answered"


class Judge:
    """A real endpoint that answers when it is told to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.model = secrets.token_hex(8)
        """Of no earlier test: the host keeps what judges have answered."""
        self.asked = 0
        self.go = threading.Event()
        self.status = 200
        self.content = ""
        """In place of an opinion."""
        self.before = lambda: None

    def respond(self, path: str, body: dict[str, Any], key: str) -> tuple[int, Any]:
        self.before()
        self.asked += 1
        self.go.wait(60)
        if self.status != 200:
            return self.status, {"error": {"message": "no"}}
        found = re.search(r"of case ([0-9a-f]{16}):", body["messages"][1]["content"])
        assert found
        return completion(self.content or json.dumps({"case": found[1], "score": 0.25}))

    def job(self, instance: str = "i", **fields: Any) -> TrajectoryJob:
        judge = {"model": self.model, "prompt": "Is it polite?", "base_url": self.url}
        return make_job("run", instance, item=ROW, agent=REPLAY, judge=judge, **fields)


@pytest.fixture
def judge() -> Iterator[Judge]:
    with openai_stub() as (stub, url):
        judge = Judge(url)
        stub.respond = judge.respond  # type: ignore[method-assign]
        yield judge
        judge.go.set()


@pytest.mark.fleet
def test_a_score_survives_the_worker_that_was_killed_while_it_was_judged(
    start_worker, ledger, factory, judge
):
    first = start_worker(concurrency=1, **SUPPORT)
    enqueue([judge.job()], ledger=ledger)
    wait_until("the judge is asked", lambda: judge.asked)
    first.kill9()
    start_worker(concurrency=1, **SUPPORT)
    [record] = factory.wait_done()
    assert (record.score, record.rewards, record.attempt, record.epoch) == (1.0, {}, 1, 1)
    assert record.report["judge"]["error"] == UNFINISHED
    assert (judge.asked, ledger.client.xlen("hq:results")) == (1, 1)


@pytest.mark.fleet
def test_a_score_that_needs_its_judge_is_measured_again_by_another_worker(
    start_worker, ledger, factory, judge
):
    first = start_worker(concurrency=1, **SUPPORT)
    enqueue([judge.job(env="judged_envs:BY_JUDGE")], ledger=ledger)
    wait_until("the judge is asked", lambda: judge.asked)
    first.kill9()
    judge.go.set()
    start_worker(concurrency=1, **SUPPORT)
    [record] = factory.wait_done()
    assert (record.score, record.rewards, record.epoch) == (0.25, {"judge": 0.25}, 2)
    assert ledger.client.xlen("hq:results") == 1
    assert float(ledger.client.hget("hq:totals", "tokens")) == 9, "the answer that came is paid"


@pytest.mark.fleet
@pytest.mark.parametrize("env", ["gsm8k", "judged_envs:BY_JUDGE"])
def test_a_worker_that_is_told_to_end_lets_a_judge_finish(
    start_worker, ledger, factory, judge, env: str
):
    first = start_worker(concurrency=1, **SUPPORT)
    enqueue([judge.job(env=env)], ledger=ledger)
    wait_until("the judge is asked", lambda: judge.asked)
    first.process.send_signal(signal.SIGTERM)
    first.wait_for_log("Warm shutdown")
    judge.go.set()
    assert first.process.wait(60) == 0
    [record] = factory.wait_done()
    assert (record.rewards, record.epoch, judge.asked) == ({"judge": 0.25}, 1, 1)


@pytest.mark.fleet
def test_a_worker_that_may_not_wait_any_longer_publishes_the_score_or_hands_the_job_back(
    start_worker, ledger, factory, judge
):
    first = start_worker(concurrency=2, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0", **SUPPORT)
    jobs = [judge.job(), judge.job(env="judged_envs:BY_JUDGE", instance="by_judge")]
    enqueue(jobs, ledger=ledger)
    wait_until("the judge is asked twice", lambda: judge.asked == 2)
    assert first.terminate() == 0, first.log()
    assert ledger.run_status("run").finished == 1
    judge.go.set()
    start_worker(concurrency=1, **SUPPORT)
    scored, by_judge = sorted(factory.wait_done(), key=lambda record: record.instance_id)[::-1]
    assert (scored.instance_id, scored.score, scored.epoch) == ("i", 1.0, 1)
    assert scored.report["judge"]["error"] == UNFINISHED
    assert (by_judge.score, by_judge.rewards, by_judge.epoch) == (0.25, {"judge": 0.25}, 2)
    assert ledger.client.xlen("hq:results") == 2


@pytest.mark.fleet
def test_a_wrong_key_of_the_judge_pauses_the_run_and_takes_no_score_away(
    start_worker, ledger, factory, judge
):
    judge.status = 401
    judge.go.set()
    start_worker(concurrency=1, **SUPPORT)
    enqueue([judge.job()], ledger=ledger)
    wait_until("the run is paused", lambda: Runs(ledger).paused("run"))
    [record] = factory.wait_done()
    assert (record.score, record.rewards) == (1.0, {})
    assert record.report["judge"]["error"].startswith("model_config: ")


@pytest.mark.fleet
def test_a_paused_run_asks_no_judge_until_it_goes_on(start_worker, ledger, factory, judge):
    """As when its budget was reached by others meanwhile."""
    runs = Runs(ledger)
    paused: list[bool] = []
    judge.before = lambda: paused.append(runs.paused("run") is not None)
    judge.content = "unusable"
    worker = start_worker(concurrency=1, **SUPPORT)
    enqueue([judge.job()], ledger=ledger)
    wait_until("the judge is asked", lambda: judge.asked)
    runs.pause("run", "enough")
    worker.wait_for_log("run run is paused: its trajectories wait")
    judge.go.set()
    worker.wait_for_log("answer is unusable")
    judge.content = ""
    runs.resume("run")
    [record] = factory.wait_done()
    assert (record.rewards, paused) == ({"judge": 0.25}, [False, False])
