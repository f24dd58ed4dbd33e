"""prime-rl's files: each group once in the weights, whoever is killed. The packer is a stand-in."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from numbered_groups import publish_groups

from hermes_plugins.trainers.prime_rl import _options, _Orchestrator
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.trainers.journal import FILE_NAME

PROCESS = Path(__file__).parent / "support" / "prime_rl_process.py"
STEPS = 6


class Trainer:
    """prime-rl's trainer as it reads and writes files; its weights are the rows that it trained."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.step, self.weights = 0, []
        if checkpoints := sorted((run / "checkpoints").glob("step_*")):
            self.step = int(checkpoints[-1].name.removeprefix("step_"))
            self.weights = json.loads((checkpoints[-1] / "trainer" / ".metadata").read_text())
        for path in (run / "broadcasts").glob("step_*"):
            if int(path.name.removeprefix("step_")) > self.step:
                shutil.rmtree(path)
        self.broadcast()

    def broadcast(self) -> None:
        path = self.run / "broadcasts" / f"step_{self.step}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "STABLE").touch()

    def train(self, until: int) -> None:
        """Train the next steps, and save every second one."""
        while self.step < until:
            batch = self.run / "rollouts" / f"step_{self.step + 1}"
            while not batch.exists():
                time.sleep(0.01)
            for rank in sorted(batch.iterdir()):
                self.weights += [row["token_ids"][:2] for row in json.loads(rank.read_text())]
            self.step += 1
            if self.step % 2 == 0:
                path = self.run / "checkpoints" / f"step_{self.step}" / "trainer"
                path.mkdir(parents=True)
                (path / "draft").write_text(json.dumps(self.weights))
                (path / "draft").rename(path / ".metadata")
            self.broadcast()


def orchestrate(ledger: Ledger, run: Path, kill: str = "") -> subprocess.Popen[str]:
    options = {"run": "run", "run-dir": run, "groups-per-step": 1, "group-size": 2, "seq-len": 64}
    options |= {"url": ledger.url, "name": "trainer", "ranks": 2, "max-steps": STEPS}
    options |= {"load-weights": f"ls {run}/broadcasts"}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, str(PROCESS), kill, *given]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def assert_each_group_once(ledger: Ledger, run: Path) -> None:
    weights = json.loads((run / "checkpoints" / f"step_{STEPS}" / "trainer/.metadata").read_text())
    assert sorted(weights) == [[n, sample] for n in range(STEPS) for sample in range(2)]
    lines = [json.loads(line) for line in (run / FILE_NAME).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0


@pytest.mark.parametrize("kill", ["journaled:3", "written:3"])
def test_a_killed_orchestrator_goes_on_beside_a_trainer_that_lives(ledger, tmp_path, kill):
    publish_groups(ledger, STEPS)
    trainer = Trainer(tmp_path)
    thread = threading.Thread(target=trainer.train, args=(STEPS,), daemon=True)
    thread.start()
    with orchestrate(ledger, tmp_path, kill) as first:
        _, error = first.communicate(timeout=60)
        assert first.returncode == -signal.SIGKILL, error
    with orchestrate(ledger, tmp_path) as second:
        _, error = second.communicate(timeout=60)
        assert second.returncode == 0, error
    thread.join(60)
    assert_each_group_once(ledger, tmp_path)
    assert version_of(ledger, "run") is not None


def test_a_trainer_that_goes_back_to_its_checkpoint_trains_the_same_batches(ledger, tmp_path):
    publish_groups(ledger, STEPS)
    with orchestrate(ledger, tmp_path) as orchestrator:
        Trainer(tmp_path).train(3)  # killed after step 3: the checkpoint is of step 2
        again = Trainer(tmp_path)
        assert again.step == 2
        again.train(STEPS)
        _, error = orchestrator.communicate(timeout=60)
        assert orchestrator.returncode == 0, error
    assert_each_group_once(ledger, tmp_path)


@pytest.mark.fleet
def test_both_killed_go_on_from_the_checkpoint_and_the_batches_that_were_written(ledger, tmp_path):
    publish_groups(ledger, STEPS)
    with orchestrate(ledger, tmp_path, "written:4") as first:
        Trainer(tmp_path).train(3)
        first.communicate(timeout=60)
    thread = threading.Thread(target=Trainer(tmp_path).train, args=(STEPS,), daemon=True)
    thread.start()
    with orchestrate(ledger, tmp_path) as second:
        _, error = second.communicate(timeout=60)
        assert second.returncode == 0, error
    thread.join(60)
    assert_each_group_once(ledger, tmp_path)


def test_the_rows_are_whole_and_their_advantages_are_on_the_trained_tokens(ledger, tmp_path):
    publish_groups(ledger, 1)
    with orchestrate(ledger, tmp_path, "written:1") as killed:
        killed.communicate(timeout=60)
    found = [
        json.loads((tmp_path / "rollouts" / "step_1" / f"rank_{rank}.bin").read_text())[0]
        for rank in range(2)
    ]
    assert [row["token_ids"] for row in found] == [[0, 0, 7, 8], [0, 1, 7, 8]]
    assert [row["advantages"] for row in found] == [[0.0, 0.0, -0.5, -0.5], [0.0, 0.0, 0.5, 0.5]]
    assert found[0] | {"token_ids": [], "advantages": []} == {
        "token_ids": [],
        "mask": [False, False, True, True],
        "logprobs": [0.0, 0.0, -0.5, -0.25],
        "temperatures": [1.0] * 4,
        "env_name": "gsm8k",
        "advantages": [],
    }


def test_weights_keep_their_version_when_the_orchestrator_alone_is_started_again(
    ledger, feed, tmp_path
):
    given = "--run run --groups-per-step 1 --group-size 2 --seq-len 64 --load-weights true"
    options = _options().parse_args([*given.split(), "--run-dir", str(tmp_path)])
    for step in (3, 3, 4):
        path = tmp_path / "broadcasts" / f"step_{step}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "STABLE").touch()
        with feed() as opened:
            _Orchestrator(opened, options)._look()
        assert version_of(ledger, "run") == step
