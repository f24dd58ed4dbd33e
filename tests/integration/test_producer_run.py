"""A producer against a real Redis; a thread plays the worker through the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import plugin
import pytest
from redis_server import RedisServer
from worker_process import wait_until

from hermes_queue.bodies import codec
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.accounts.drift import drift_of
from hermes_queue.ledger.budgets import accounts
from hermes_queue.ledger.fleet.pacing import RunPace, pace_of
from hermes_queue.models import Failure, ScoredTrajectory, TrajectoryJob, identity
from hermes_queue.results.consume import consume
from producers.base import Producer, main
from producers.command import run_command

pytestmark = pytest.mark.redis

PRODUCER = Producer(name="sums", env="sums_env:ENV", description="Sums.")
Judge = Callable[[TrajectoryJob], dict[str, Any]]


def right(_: TrajectoryJob) -> dict[str, Any]:
    return {"status": "completed", "stop_reason": "submitted", "score": 1.0}


def wrong(_: TrajectoryJob) -> dict[str, Any]:
    return {"status": "completed", "stop_reason": "max_turns", "score": 0.0}


def broken(job: TrajectoryJob, kind: str = "EnvInfraError") -> dict[str, Any]:
    if job.sample_index == 0:
        return right(job)
    failure = Failure(cause="sandbox", stage="setup", type=kind, message="install bubblewrap")
    return {"status": "failed", "stop_reason": "failed", "score": None, "failure": failure}


def finish(ledger: Ledger, trajectory_id: str, judge: Judge) -> None:
    begun = ledger.begin(trajectory_id, 1, owner="test", lease_s=60, nonce="n")
    if begun.verdict != "run":
        return
    job = codec.decode_job(begun.job, trajectory_id)
    record = ScoredTrajectory(
        **identity(job),
        attempt=1,
        epoch=begun.epoch,
        **judge(job),
    )
    ledger.publish(record, codec.encode_record(record), owner="test", finished_ttl_s=600)


@contextmanager
def worker(url: str, judge: Judge) -> Iterator[None]:
    """Finishes whatever is enqueued, until the block ends."""
    over = threading.Event()

    def work() -> None:
        ledger = Ledger.connect(url=url)
        while not over.wait(0.02):
            for key in ledger.client.scan_iter(ledger.key("traj:*")):
                finish(ledger, key.decode().removeprefix(ledger.key("traj:")), judge)
        ledger.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def url(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rows = [{"instance_id": f"s{n}", "question": "?", "answer": n} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    return str(redis_server.url)


def produce(*flags: str) -> int:
    return main(PRODUCER, ["--dataset", "rows.jsonl", "--run-id", "r", *flags])


def records(path: str = "out.jsonl") -> list[ScoredTrajectory]:
    lines = Path(path).read_text().splitlines()
    return [ScoredTrajectory.model_validate_json(line) for line in lines]


def test_a_lane_that_nobody_serves_is_said_when_its_jobs_are_enqueued(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Ledger.connect(url=url)) as ledger:
        ledger.beat("w", {"lanes": ["train"]}, ttl_s=60)
        assert produce("--lane", "eval") == 0
        assert "lane eval, which no live worker serves" in capsys.readouterr().err
        assert produce("--lane", "train", "--run-id", "s") == 0
        assert "serves" not in capsys.readouterr().err


def test_what_model_calls_fail_of_is_said_while_one_waits(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "http://m/v1: 429 slow down, 12 tries, next in 4 s"

    found: list[str] = []

    def is_said() -> bool:
        found.append(capsys.readouterr().err)
        return f"model calls fail: {said}" in "".join(found)

    def right_once_it_is_said(job: TrajectoryJob) -> dict[str, Any]:
        wait_until("it is said", is_said)
        return right(job)

    with closing(Ledger.connect(url=url)) as ledger:
        ledger.beat("w", {"lanes": ["train"], "owner": "w", "trouble": {"r": said}}, ttl_s=60)
    with worker(url, right_once_it_is_said):
        assert produce("--follow") == 0


@pytest.mark.parametrize(
    ("trusted", "code"),
    [
        ([["http://a/v1"]], 0),
        ([["http://a"], ["http://b"]], 0),
        ([None], 0),
        ([], 0),
        ([["http://b"]], 2),
        ([["http://b"], []], 2),
    ],
)
def test_an_endpoint_that_no_worker_of_the_lane_trusts_is_refused(
    trusted: list[list[str] | None], code: int, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = ("--agent", "openai", "--model", "m", "--base-url", "http://a/v1")
    with closing(Ledger.connect(url=url)) as ledger:
        ledger.beat("other", {"lanes": ["eval"], "endpoints": None}, ttl_s=60)
        for number, endpoints in enumerate(trusted):
            facts = {"lanes": ["train"], "endpoints": endpoints}
            ledger.beat(f"w{number}", facts, ttl_s=60)
        assert produce(*agent) == code
        said = "no worker of lane train trusts it" in capsys.readouterr().err
        assert said == bool(code)
        assert bool(ledger.run_status("r").total) != said


def test_without_follow_jobs_are_only_enqueued_and_only_once(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert produce("--group-size", "2", "--json") == 0
    assert produce("--group-size", "2", "--json") == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["enqueued"], first["already"]) == (8, 0)
    assert (second["enqueued"], second["already"]) == (0, 8)
    ledger = Ledger.connect(url=url)
    assert ledger.run_status("r").queued == 8
    ledger.close()


def test_a_run_that_follows_a_trainer_is_paced_before_its_first_job(url: str) -> None:
    assert produce("--max-ahead", "3") == 0
    assert produce("--max-ahead", "4") == 0
    ledger = Ledger.connect(url=url)
    assert (pace_of(ledger, "r"), ledger.run_status("r").queued) == (RunPace(4, 0, 0, None), 4)
    ledger.close()


def test_slot_hours_and_drift_are_limited_before_the_first_job(url: str) -> None:
    assert produce("--budget-slot-hours", "0.5", "--max-drift", "0.01") == 0
    ledger = Ledger.connect(url=url)
    assert accounts(ledger, "r", now=0)["slot_s"].limit == 1800
    assert drift_of(ledger, "r").max_drift == 0.01
    ledger.close()


@pytest.mark.parametrize(
    ("paused_by", "flags"),
    [("budget", ("--budget-slot-hours", "9")), ("drift", ("--max-drift", "0.5"))],
)
def test_a_paused_run_goes_on_when_its_limit_is_raised_and_not_before(
    url: str, paused_by: str, flags: tuple[str, str]
) -> None:
    assert produce(*flags) == 0
    ledger = Ledger.connect(url=url)
    Runs(ledger).pause("r", "too much", by=paused_by)
    assert produce() == 0
    assert Runs(ledger).paused("r") is not None
    assert produce(*flags) == 0
    assert Runs(ledger).paused("r") is None
    ledger.close()


@pytest.mark.parametrize("share", ["-0.1", "1.5", "nan", "few"])
def test_a_share_that_is_none_is_refused(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert produce("--max-drift", share) == 2
    assert "--max-drift" in capsys.readouterr().err


def test_a_run_id_stands_for_one_configuration_but_not_for_one_selection(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert produce("--items", "2", "--agent", "nop") == 0
    assert produce("--items", "2", "--agent", "oracle") == 2
    assert 'agent "nop" (now "oracle")' in capsys.readouterr().err
    assert produce("--items", "2", "--agent", "nop", "--max-turns", "3") == 2
    assert "limits" in capsys.readouterr().err
    assert produce("--items", "3", "--agent", "nop", "--priority", "1", "--lane", "eval") == 0
    ledger = Ledger.connect(url=url)
    assert ledger.run_status("r").total == 3
    ledger.close()


def test_following_ends_when_the_run_is_cancelled(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def cancel() -> None:
        ledger = Ledger.connect(url=url)
        while ledger.run_status("r").total < 4:
            time.sleep(0.05)
        Runs(ledger).cancel("r")
        ledger.close()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert produce("--follow") == 1
    thread.join()
    assert "run r was cancelled: 4 trajectories and 4 groups" in capsys.readouterr().err


def test_a_bad_row_enqueues_nothing(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("rows.jsonl").open("a") as file:
        file.write('{"instance_id": "torn", "questi')
    assert produce() == 2
    assert "rows.jsonl:5: the last line is truncated" in capsys.readouterr().err
    ledger = Ledger.connect(url=url)
    assert ledger.run_status("r").total == 0
    ledger.close()


def test_results_are_written_and_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with worker(url, wrong):
        assert produce("--group-size", "2", "--out", "out.jsonl") == 0
    captured = capsys.readouterr()
    assert len(records()) == 8
    assert captured.out.count("max_turns") == 8
    assert "8 scored (mean 0.000), 0 failed" in captured.out
    assert "results: out.jsonl\n" in captured.out
    assert "8/8 finished" in captured.err


def test_the_end_of_a_run_has_the_hints_of_plugins(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "from hermes_queue.plugins import Plugin\n"
        "PLUGIN = Plugin(name='theirs', purpose='Prints.', run_hints=('theirs:hint',))\n"
        "def hint(path): return f'print: lpr {path}'\n"
    )
    with plugin.installing(tmp_path, monkeypatch), worker(url, right):
        plugin.install(tmp_path, "theirs", {"theirs.py": source}, "theirs:PLUGIN")
        assert produce("--items", "1", "--out", "out.jsonl") == 0
    assert capsys.readouterr().out.endswith("\nprint: lpr out.jsonl\n")


def test_the_file_holds_what_a_consumer_gets(url: str) -> None:
    async def consumed() -> dict[str, ScoredTrajectory]:
        found = {}
        async for group in consume("trainer", url=url, idle_timeout_s=0.5):
            found.update({member.trajectory_id: member for member in group.members})
            await group.ack()
        return found

    with worker(url, right):
        assert produce("--out", "out.jsonl", "--quiet") == 0
    assert {t.trajectory_id: t for t in records()} == asyncio.run(consumed())


def test_following_again_duplicates_nothing_and_leaves_no_consumer_group(url: str) -> None:
    with worker(url, right):
        assert produce("--items", "2", "--out", "out.jsonl") == 0
        assert produce("--items", "4", "--out", "out.jsonl") == 0
    assert sorted(t.instance_id for t in records()) == ["s0", "s1", "s2", "s3"]
    ledger = Ledger.connect(url=url)
    assert ledger.client.xinfo_groups(ledger.key("results")) == []
    assert list(ledger.client.scan_iter("*consumer-group*")) == []
    ledger.close()


def test_failures_are_exit_code_1_and_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with worker(url, broken):
        assert produce("--items", "1", "--group-size", "2", "--follow") == 1
    out = capsys.readouterr().out
    assert "EnvInfraError in setup: install bubblewrap" in out
    assert "1 scored (mean 1.000), 1 failed" in out


def test_a_refilled_group_is_complete_in_the_file(url: str) -> None:
    def lucky(job: TrajectoryJob) -> dict[str, Any]:
        return broken(job, "SandboxError") if job.sample_index == 1 else right(job)

    with worker(url, lucky):
        assert produce("--items", "1", "--group-size", "2", "--out", "out.jsonl") == 0
        assert produce("--items", "1", "--group-size", "2", "--out", "out.jsonl") == 0
    assert sorted(t.sample_index for t in records()) == [0, 2]


def test_following_says_that_the_run_is_paused_and_how_it_goes_on(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert produce("--quiet") == 0
    ledger = Ledger.connect(url=url)
    Runs(ledger).pause("r", "lunch")
    notice = "the run is paused (operator): lunch; resume it: hermes-queue run resume r"
    err: Any = sys.stderr  # of capsys: read without taking anything away

    def resume() -> None:
        try:
            wait_until("it is said", lambda: notice in err.getvalue())
        finally:
            Runs(ledger).resume("r")
        with worker(url, right):
            over.wait(120)

    over = threading.Event()
    thread = threading.Thread(target=resume)
    thread.start()
    try:
        assert produce("--follow") == 0
    finally:
        over.set()
        thread.join()
        ledger.close()
    assert notice in capsys.readouterr().err


def test_following_ends_when_the_rest_was_dropped_by_its_policy(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with worker(url, wrong):
        flags = ("--items", "2", "--group-size", "2", "--drop-zero-variance", "--json")
        assert produce(*flags, "--follow") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["dropped"], summary["missing"], summary["finished"]) == (2, 0, 0)


def test_extra_samples_are_started_and_the_first_ones_make_the_group(url: str) -> None:
    with worker(url, right):
        flags = ("--items", "1", "--group-size", "2", "--extra-samples", "2")
        assert produce(*flags, "--out", "out.jsonl") == 0
    assert len(records()) == 2
    ledger = Ledger.connect(url=url)
    status = ledger.run_status("r")
    assert (status.total, status.finished, status.surplus) == (4, 2, 2)
    ledger.close()


def test_missing_isolation_is_exit_code_3_with_the_fix(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with worker(url, lambda job: broken(job, "IsolationUnavailable")):
        assert produce("--items", "1", "--group-size", "2", "--follow") == 3
    assert "error: install bubblewrap" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_is_written_and_says_how_to_go_on(
    url: str, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        while not Path("out.jsonl").exists() or not Path("out.jsonl").stat().st_size:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    ledger = Ledger.connect(url=url)
    assert produce("--quiet") == 0
    first = next(ledger.client.scan_iter(ledger.key("traj:*"))).decode()
    finish(ledger, first.removeprefix(ledger.key("traj:")), right)
    ledger.close()
    thread = threading.Thread(target=interrupt)
    thread.start()
    assert produce("--out", "out.jsonl") == 130
    thread.join()
    assert len(records()) == 1
    error = capsys.readouterr().err
    assert "1 of 4 trajectories are in out.jsonl" in error
    assert "--run-id r --out out.jsonl" in error
    with worker(url, right):
        assert produce("--out", "out.jsonl") == 0
    assert len(records()) == 4


def test_sigterm_lets_the_tasks_of_a_command_clean_up() -> None:
    cleaned: list[str] = []

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)

    async def work() -> None:
        try:
            await asyncio.wait_for(interrupted(), 60)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("work")

    def command() -> int:
        asyncio.run(work())
        return 0

    assert run_command(command, interrupted="stopped") == 130
    assert cleaned == ["work"]


def test_redis_may_go_away_and_come_back_while_we_follow(
    url: str, redis_server: RedisServer
) -> None:
    def outage() -> None:
        with redis_server.client() as client:
            wait_until("the jobs are enqueued", lambda: client.zcard("hq:waiting") == 4)
        redis_server.restart()
        with worker(url, right):
            finished.wait(120)

    finished = threading.Event()
    thread = threading.Thread(target=outage)
    thread.start()
    try:
        assert produce("--out", "out.jsonl") == 0
    finally:
        finished.set()
        thread.join()
    assert len(records()) == 4
