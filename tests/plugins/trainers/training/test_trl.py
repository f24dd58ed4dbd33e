"""TRL takes real optimiser steps on groups from a real queue, each group once."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record, published_records
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers, wait_until

import hermes_queue
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.models import AgentSpec, TokenSequence
from hermes_queue.trainers.journal import FILE_NAME

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

import tiny_policy  # noqa: E402

GROUPS, SIZE = 12, 4
STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "model"
    tiny_policy.make(directory)
    return directory


@pytest.fixture(scope="module")
def policy(model: Path) -> tiny_policy.Policy:
    return tiny_policy.Policy(model)


@pytest.fixture
def server(policy: tiny_policy.Policy) -> Iterator[tiny_policy.Server]:
    running = tiny_policy.Server(policy)
    yield running
    running.close()


class Trainer:
    """Starts trainer processes on one directory."""

    def __init__(self, url: str, directory: Path, model: Path) -> None:
        self.url, self.directory = url, directory
        (directory / "model").symlink_to(model)

    def start(self, mode: str, kill: str = "", *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "trl_process.py"), mode, str(self.directory)]
        return subprocess.Popen(
            [*command, "--steps", str(STEPS), "--kill", kill, *flags],
            env={
                "HERMES_QUEUE_REDIS_URL": self.url,
                "PATH": "/usr/bin:/bin",
                "HF_HUB_OFFLINE": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, mode: str, kill: str = "", *flags: str) -> str:
        """Returns what it wrote to stderr."""
        return self.wait(self.start(mode, kill, *flags), kill)

    def wait(self, process: subprocess.Popen[str], kill: str = "") -> str:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == (-signal.SIGKILL if kill else 0), errors[-3000:]
        return errors

    @property
    def journal(self) -> list[dict[str, Any]]:
        text = (self.directory / "out" / FILE_NAME).read_text()
        return [json.loads(line) for line in text.splitlines()]

    @property
    def log(self) -> dict[str, Any]:
        return json.loads((self.directory / "log.json").read_text())

    def witness(self, step: int) -> list[list[float]]:
        """The rows whose loss was taken for the weights of that checkpoint."""
        path = self.directory / "out" / f"checkpoint-{step}" / "witness.json"
        return json.loads(path.read_text())

    def logged(self, name: str) -> list[float]:
        return [each[name] for each in self.log["history"] if name in each]


@pytest.fixture
def trainer(redis_server: RedisServer, tmp_path: Path, model: Path) -> Trainer:
    return Trainer(redis_server.url, tmp_path, model)


def two_turns(policy: tiny_policy.Policy, number: int) -> TokenSequence:
    """A prompt, what the model says, the output of a tool, and what the model says then."""
    encode = policy.tokenizer.encode
    ids = encode(f"<|start|>user\nquestion {number}<|end|>\n<|start|>assistant\n")
    mask, logprobs = [0] * len(ids), [0.0] * len(ids)
    for output in (f"<|end|>\n<|start|>tool\nthe output of {number}<|end|>\n", ""):
        said, their, _ = policy.sample(ids, 5 + number % 3)
        more = encode(output) if output else []
        ids += [*said, *more]
        mask += [1] * len(said) + [0] * len(more)
        logprobs += [*their, *[0.0] * len(more)]
    return TokenSequence(ids=ids, loss_mask=mask, logprobs=logprobs)


def publish_two_turns(ledger: Ledger, policy: tiny_policy.Policy, *, shift: int = 0) -> None:
    """Twelve groups of four; with `shift`, logprobs that belong to other tokens."""
    for group in range(GROUPS):
        jobs = [make_job("rl", f"i{group}", sample=i, size=SIZE) for i in range(SIZE)]
        enqueue(ledger, *jobs)
        for i, job in enumerate(jobs):
            begin(ledger, job)
            row = two_turns(policy, SIZE * group + i)
            moved = [*row.logprobs[shift:], *row.logprobs[:shift]]
            row = row.model_copy(update={"logprobs": tuple(moved)})
            record = make_record(job, float(i % 2))
            publish_record(ledger, record.model_copy(update={"sequences": (row,)}))


def trained_logprobs(groups: list[hermes_queue.HeldGroup]) -> list[list[float]]:
    return sorted(
        [round(lp, 4) for lp, m in zip(s.logprobs, s.loss_mask, strict=True) if m]
        for group in groups
        for member in group.members
        for s in member.sequences or ()
    )


def rounded(witness: list[list[float]]) -> list[list[float]]:
    return sorted([round(each, 4) for each in row] for row in witness)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_trainer_computes_the_logprobs_that_were_sampled(ledger, trainer, policy, mode, capsys):
    publish_two_turns(ledger, policy)
    trainer.run(mode, "", *(["--vllm"] if mode == "sync" else []))
    names = {"async": "ratio", "sync": "sampling/importance_sampling_ratio/mean"}
    ratios = trainer.logged(names[mode])
    with capsys.disabled():
        print(f"\n{mode}: ratios {ratios}", end="")
        print(f", kl {trainer.logged('kl')}" if mode == "async" else "")
    assert len(ratios) == STEPS
    assert ratios[0] == pytest.approx(1.0, abs=1e-4)
    assert abs(ratios[-1] - 1.0) > 1e-4  # the weights have moved, and the groups have not
    assert [len(line["groups"]) for line in trainer.journal] == [2] * STEPS
    # Versions count weights that are live: after the last step too, or before it.
    assert version_of(ledger, "rl") == {"async": STEPS + 1, "sync": STEPS - 1}[mode]


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache that the users of slots can reach, which pytest's directories are not."""
    with tempfile.TemporaryDirectory(prefix="hq-cache-", dir="/var/tmp") as made:
        Path(made).chmod(0o711)
        yield Path(made)


def example(name: str, *arguments: object, cache: Path) -> str:
    """Run a script of examples/; returns what it printed."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    env = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HERMES_QUEUE_PATHS_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_fine_tuning_has_the_loss_of_what_was_sampled(
    ledger, policy, model, tmp_path, cache, capsys
):
    publish_two_turns(ledger, policy)
    rows = tmp_path / "sft.jsonl"
    sink = [str(Path(sys.executable).with_name("hermes-queue")), "sink", "tokens", "--quiet"]
    command = [*sink, "--out", str(rows), "--run", "rl", "--idle-timeout", "2"]
    env = {"HERMES_QUEUE_REDIS_URL": ledger.url, "PATH": "/usr/bin:/bin"}
    subprocess.run(command, check=True, env=env, timeout=100)
    ids = [json.loads(line)["input_ids"] for line in rows.read_text().splitlines()]
    sampled = [
        logprob
        for record in published_records(ledger)
        for sequence in record.sequences or ()
        for logprob in itertools.compress(sequence.logprobs, sequence.loss_mask)
    ]
    assert len(ids) == GROUPS * SIZE
    flags = ["--model", model, "--steps", 2, "--batch", len(ids), "--cpu", "--out", tmp_path / "o"]
    printed = example("sft_from_run.py", rows, *flags, cache=cache)
    losses = [float(loss) for loss in re.findall(r"^step .* loss (\S+)$", printed, re.MULTILINE)]
    with capsys.disabled():
        print(f"\nSFT: losses {losses}, sampled {-sum(sampled) / len(sampled):.6f}")
    assert losses[0] == pytest.approx(-sum(sampled) / len(sampled), abs=1e-3)
    assert losses[1] < losses[0]


def test_the_on_policy_example_trains_publishes_and_goes_on(tmp_path, cache, capsys):
    flags = ["--out", tmp_path / "out", "--run", f"op-{tmp_path.name}", "--steps"]
    first = example("on_policy_trl.py", *flags, 5, cache=cache)
    assert "policy version 4, 10 groups trained" in first
    again = example("on_policy_trl.py", *flags, 7, cache=cache)
    assert "policy version 6, 4 groups trained" in again
    with capsys.disabled():
        print("\n" + again)


def test_the_gsm8k_example_trains_on_sums(tmp_path, cache):
    flags = ["--demo", "--steps", 4, "--out", tmp_path / "out", "--run", f"gs-{tmp_path.name}"]
    printed = example("trl_grpo_gsm8k.py", *flags, cache=cache)
    assert "4 steps; FeedCounts(taken=8, trained=8, saved=8, " in printed


@pytest.fixture
def start_worker(
    redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    path = f"{EXAMPLES}:{HERE.parents[3]}"
    with closing_workers(
        redis_server.url, tmp_path / "w", concurrency=2, forked=False, PYTHONPATH=path
    ) as start:
        yield start


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_every_group_is_once_in_the_weights_whatever_is_killed(
    mode, ledger, redis_server, trainer, server, start_worker, capsys
):
    with hermes_queue.consume_sync("witness", run="rl", url=redis_server.url) as witness:
        sent = hermes_queue.enqueue(
            run_id="rl",
            env="vowels:ENV",
            items=[{"instance_id": f"i{n}"} for n in range(GROUPS)],
            group_size=SIZE,
            agent=AgentSpec(
                kind="openai",
                model="policy",
                base_url=server.url,
                params={"token_ids": True, "logprobs_mode": "processed_logprobs"},
                sampling={"temperature": 1.0, "max_tokens": 12},
            ),
            url=redis_server.url,
        )
        assert sent.enqueued == GROUPS * SIZE
        worker = start_worker()
        first = trainer.start(mode, "trained:3")
        wait_until("a published group", lambda: ledger.client.xlen("hq:results") > 0)
        worker.kill9()
        start_worker()  # and its trajectories go on there
        trainer.wait(first, "trained:3")
        assert [line["step"] for line in trainer.journal] == [1, 2, 3]

        gate = trainer.directory / "gate"
        gate.touch()
        second = trainer.start(mode, "checkpoint:4", "--wait", str(gate))
        wait_until("the trainer has begun", lambda: len(trainer.journal) < 3, timeout_s=400)
        redis_server.kill9()
        gate.unlink()
        redis_server.start()
        trainer.wait(second, "checkpoint:4")
        assert [line["step"] for line in trainer.journal] == [1, 2, 3, 4]

        errors = trainer.run(mode)
        groups = [witness.next_within(60) for _ in range(GROUPS)]
    assert ("ignores the sampler's logprobs" in errors) == (mode == "sync")
    assert [line["step"] for line in trainer.journal] == [*range(1, STEPS + 1)]
    in_weights = [name for line in trainer.journal for name in line["groups"]]
    assert sorted(in_weights) == sorted({group.group_id for group in groups})
    assert rounded(trainer.witness(STEPS)) == trained_logprobs(groups)
    assert trainer.log["recognised"] == 4  # of steps 3 and 4, whose checkpoint was not reported
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0
    with capsys.disabled():
        print(f"\n{mode}: {GROUPS} groups in {STEPS} steps, {trainer.log['cpu_s']:.2f} s of CPU")
    if mode == "async":
        assert version_of(ledger, "rl") >= STEPS
