"""The no-setup default: one command, everything private, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from redis_server import redis_binary_of
from worker_process import wait_until
from zygote import ForkedCommand, start_forked

from hermes_queue.broker import embedded
from hermes_queue.broker.embedded import Embedded
from hermes_queue.disk.locks import try_hold
from hermes_queue.errors import EXIT_BLOCKED, HermesQueueError
from hermes_queue.settings import PathSettings

Started = subprocess.Popen[str] | ForkedCommand
Run = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start a producer with no Redis configured, in an empty directory.

    `forked`: from a process that has imported it; False = by the command that people type.
    """

    started: list[Started] = []
    run_ids: list[str] = []

    def run(module: str, *flags: str, forked: bool = True, **environment: str) -> Started:
        if "--run-id" not in flags:
            flags = (*flags, "--run-id", f"e2e-{uuid4().hex}")
        run_ids.append(flags[flags.index("--run-id") + 1])
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
        source = str(Path(__file__).parents[2])
        settings = {**clean, "PYTHONPATH": source, **environment}
        if forked:
            command = start_forked(
                f"producers.{module}", *flags, environment=settings, directory=tmp_path
            )
            started.append(command)
            return command
        process = subprocess.Popen(
            [sys.executable, "-m", f"producers.{module}", *flags],
            cwd=tmp_path,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for run_id in run_ids:  # an interrupted run keeps its state on purpose
        shutil.rmtree(PathSettings().cache / "embedded" / run_id, ignore_errors=True)


def wait_for_slots(process: Started, count: int) -> list[psutil.Process]:
    """Until `count` slots run the slow agent's command; returns all the producer started."""

    def probe() -> list[psutil.Process]:
        found = psutil.Process(process.pid).children(recursive=True)
        sleeping = 0
        for child in found:
            with suppress(psutil.NoSuchProcess):
                sleeping += child.name() == "sleep" and "infinity" not in child.cmdline()
        return found if sleeping >= count else []

    return wait_until("commands running in slots", probe)


def slow(seconds: int) -> tuple[str, ...]:
    """Flags for an agent that runs a command of so many seconds."""
    return ("--agent", "slow", "--agent-param", f"seconds={seconds}", "--agent-param", "turns=1")


def command_line(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_scores_is_written_down_and_leaves_no_state_and_no_process(start, tmp_path):
    run_id = f"leaves-nothing-{os.getpid()}"
    flags = ("--run-id", run_id, "--items", "2", "--lane", "eval", "--out", "out.jsonl")
    process = start("gsm8k", *flags, forked=False)
    started = wait_until("its processes", psutil.Process(process.pid).children)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert [r["score"] for r in records(tmp_path / "out.jsonl")] == [1.0, 1.0]
    assert "out.jsonl" in out
    assert not (PathSettings().cache / "embedded" / run_id).exists()
    assert not [child for child in started if child.is_running()]


@pytest.mark.fleet
def test_ctrl_c_leaves_nothing_running_and_the_run_can_be_taken_up(start, tmp_path):
    flags = ("gsm8k", "--items", "2", "--run-id", f"interrupted-{os.getpid()}", "--out", "o.jsonl")
    process = start(*flags, *slow(6))
    started = wait_for_slots(process, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    _gone, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    again = start(*flags, *slow(6))
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, out + err
    assert len(records(tmp_path / "o.jsonl")) == 2


@pytest.mark.fleet
def test_killing_the_producer_takes_redis_worker_and_slots_with_it(start):
    process = start("gsm8k", "--items", "1", *slow(300), forked=False)
    started = wait_for_slots(process, 1)
    process.kill()
    process.communicate()
    _gone, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


@pytest.mark.fleet
def test_two_runs_at_once_do_not_meet(start, tmp_path):
    both = [start("gsm8k", "--items", "2", "--out", f"{n}.jsonl") for n in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    assert [len(records(tmp_path / f"{n}.jsonl")) for n in range(2)] == [2, 2]


@pytest.mark.fleet
def test_the_same_run_id_twice_at_once_is_refused(start):
    run_id = f"twice-{os.getpid()}"
    first = start("gsm8k", "--items", "1", *slow(300), "--run-id", run_id)
    wait_for_slots(first, 1)
    second = start("gsm8k", "--items", "1", "--run-id", run_id, "--out", "second.jsonl")
    _out, err = second.communicate(timeout=110)
    assert second.returncode == 2
    assert "--run-id" in err
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)


def test_a_run_without_isolation_exits_3_with_the_fix(start, tmp_path):
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "bwrap").write_text("#!/bin/sh\necho 'uid map: Permission denied' >&2\nexit 1\n")
    (broken / "bwrap").chmod(0o755)
    process = start("gsm8k", "--items", "1", PATH=f"{broken}:{os.environ['PATH']}")
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "HERMES_QUEUE_LOCAL_ISOLATION=none" in err


def test_a_worker_that_dies_is_an_error_with_its_log(start):
    process = start("gsm8k", "--items", "1", *slow(600))
    started = wait_for_slots(process, 1)
    [worker] = [p for p in started if "hermes_queue.broker.worker" in command_line(p)]
    worker.kill()
    _out, err = process.communicate(timeout=110)  # long before its job would have ended
    assert process.returncode == 1
    assert "worker.log" in err


def test_a_worker_that_ended_itself_is_started_again_but_not_for_ever(monkeypatch):
    factory = Embedded(run_id=f"e2e-{uuid4().hex}", concurrency=1)
    started = []

    def start() -> None:
        started.append(
            subprocess.Popen([sys.executable, "-c", f"raise SystemExit({EXIT_BLOCKED})"])
        )
        factory._worker = started[-1]
        started[-1].wait()

    monkeypatch.setattr(factory, "_start_worker", start)
    monkeypatch.setattr(embedded, "_RESTARTS", 2)
    start()
    factory.check()
    factory.check()
    assert len(started) == 3
    with pytest.raises(HermesQueueError, match=f"ended with code {EXIT_BLOCKED}"):
        factory.check()


BUNDLED = {
    "oracle": ("1", ("--items", "1"), 1),  # all: `make validate`
    "nop": ("0", ("--items", "1"), 1),
    "tamper": ("0", ("--items", "1", "--group-size", "3"), 3),  # all: `make tamper`
}


@pytest.mark.timeout(540)
@pytest.mark.parametrize(
    ("binary", "agents"),
    [
        ("redis-7", ["oracle"]),
        pytest.param("redis-6.2", ["nop"], marks=pytest.mark.fleet),
        pytest.param("redis-6.2", ["oracle", "tamper"], marks=pytest.mark.exhaustive),
    ],
)
def test_the_bundled_bugs_with_the_gold_fix_with_none_and_with_cheats(
    start, tmp_path, binary, agents
):
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "redis-server").symlink_to(redis_binary_of(binary))
    path = f"{directory}:{os.environ['PATH']}"
    for agent in agents:
        score, flags, count = BUNDLED[agent]
        process = start(
            *("swe_smith", *flags, "--agent", agent, "--expect-score", score),
            *("--out", f"{agent}.jsonl"),
            PATH=path,
        )
        out, err = process.communicate(timeout=170)
        assert process.returncode == 0, out + err
        found = records(tmp_path / f"{agent}.jsonl")
        assert {r["score"] for r in found} == {float(score)}
        assert len(found) == count


@pytest.mark.fleet
def test_a_run_whose_budget_is_spent_stops_and_goes_on_with_a_larger_one(start, tmp_path):
    path = os.pathsep.join(
        [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "support")]
    )
    flags = ("gsm8k", "--items", "4", "--agent", "spending_agent:spender", "--out", "o.jsonl")
    flags += ("--run-id", f"budget-{os.getpid()}", "--concurrency", "1")
    process = start(*flags, "--budget-tokens", "200", PYTHONPATH=path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    assert "is paused (budget): budget spent: tokens 200 of 200" in err
    assert len(records(tmp_path / "o.jsonl")) == 2
    again = start(*flags, "--budget-tokens", "1000", PYTHONPATH=path)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, out + err
    assert len(records(tmp_path / "o.jsonl")) == 4


@pytest.mark.fleet
def test_a_wrong_model_setting_pauses_the_run_instead_of_failing_all_of_it(start, tmp_path):
    flags = ("gsm8k", "--items", "6", "--agent", "replay", "--agent-param", "path=/nowhere.jsonl")
    process = start(*flags, "--concurrency", "1", "--out", "o.jsonl")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    assert "is paused (model_config): agent replay: /nowhere.jsonl" in err
    assert len(records(tmp_path / "o.jsonl")) == 1


def test_the_state_of_a_run_that_another_process_runs_again_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    state = tmp_path / "embedded" / "again"
    (state / "redis").mkdir(parents=True)
    other = try_hold(state / "lock")
    assert other is not None
    Embedded(run_id="again", concurrency=1).discard()
    assert (state / "redis").exists()
    os.close(other)
    Embedded(run_id="again", concurrency=1).discard()
    assert not state.exists()
