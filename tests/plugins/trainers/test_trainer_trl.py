"""The adapters of TRL without TRL; training/test_trl.py has the rest."""

from __future__ import annotations

import ast
import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hermes_plugins.trainers import trl_async, trl_callback, trl_rollout
from hermes_plugins.trainers.trl_async import QueueWorker
from hermes_plugins.trainers.trl_rollout import QueueRollout
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.trainers.feed import FeedOptions

HEAVY = {"accelerate", "datasets", "numpy", "torch", "transformers", "trl"}


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL counts as installed."""
    for module in (trl_async, trl_rollout):
        monkeypatch.setattr(module, "check", lambda name: None)
        monkeypatch.setattr(module, "ack_on_save", lambda *given: given)


def feed(**options: Any) -> Any:
    given = {"group_size": 4, "run": "run", "directory": ".", "name": "trainer", **options}
    return SimpleNamespace(options=FeedOptions(**given), require=lambda **_: None)


def arguments(**changed: Any) -> Any:
    """Those that fit groups of four with any staleness."""
    given = {
        "per_device_train_batch_size": 2,
        "world_size": 2,
        "gradient_accumulation_steps": 3,
        "steps_per_generation": 3,
        "num_generations": 4,
        "token_budget": 0,
        "max_staleness": trl_async.UNBOUNDED,
        "max_steps": 10,
        "temperature": 0.7,
        "output_dir": "out",
        "save_strategy": "steps",
        "ddp_timeout": 1800,
    }
    return SimpleNamespace(**{**given, **changed})


STATE = SimpleNamespace(global_step=4)


@pytest.mark.parametrize("name", ["trl_async", "trl_rollout"])
def test_importing_an_adapter_loads_nothing_heavy(name: str) -> None:
    path = import_module(f"hermes_plugins.trainers.{name}").__file__
    tree = ast.parse(Path(str(path)).read_text())
    imported = {
        alias.name.partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        str(node.module).partition(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)
    }
    assert imported & HEAVY == set()


@pytest.mark.skipif(util.find_spec("trl") is not None, reason="TRL is installed")
@pytest.mark.parametrize("adapter", [QueueWorker, QueueRollout])
def test_without_trl_the_adapter_says_what_to_install(adapter: Any) -> None:
    with pytest.raises(ConfigurationError, match="pip install 'trl=="):
        adapter(feed())


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(
    ("changed", "options", "said"),
    [
        ({"gradient_accumulation_steps": 2}, {"group_size": 3}, "8 samples per step do not hold"),
        ({"token_budget": None}, {}, "set token_budget=0"),
        ({"max_staleness": 4}, {}, "set max_staleness=1000000"),
        ({"max_staleness": 4}, {"max_lag": 4}, "set max_staleness=5"),
        ({"max_staleness": 4}, {"max_lag": 2, "on_stale": "train"}, "set max_staleness=1000000"),
        ({"max_steps": -1}, {}, "set max_steps"),
    ],
)
def test_options_that_would_tear_groups_apart_are_refused(changed, options, said) -> None:
    worker = QueueWorker(feed(**options))
    with pytest.raises(ConfigurationError, match=said):
        worker._prepare(arguments(**changed), STATE)


@pytest.mark.usefixtures("fits")
def test_a_trainer_without_the_callback_does_not_start() -> None:
    worker = QueueWorker(feed())
    with pytest.raises(ConfigurationError, match=r"callbacks=\[worker.callback\]"):
        worker.start()
    worker._prepare(arguments(), STATE)
    worker.start()


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_generations": 8}, "num_generations=8 does not fit groups of 4"),
        ({"steps_per_generation": 6}, "set it to gradient_accumulation_steps=3"),
    ],
)
def test_positions_that_shift_groups_are_refused(changed, said) -> None:
    rollout = QueueRollout(feed())
    with pytest.raises(ConfigurationError, match=said):
        rollout._prepare(arguments(**changed), STATE)


@pytest.mark.usefixtures("fits")
def test_options_that_fit_are_taken() -> None:
    QueueRollout(feed())._prepare(arguments(), STATE)
    QueueWorker(feed(max_lag=2))._prepare(arguments(max_staleness=3), STATE)


@pytest.mark.usefixtures("fits")
def test_an_evaluation_takes_no_group_of_the_run() -> None:
    trainer = SimpleNamespace(model=SimpleNamespace(training=False))
    with pytest.raises(ConfigurationError, match="eval_strategy='no'"):
        QueueRollout(feed())(["slot 0"], trainer)


def test_the_reward_is_the_score_of_the_verifier() -> None:
    assert trl_rollout.score(hermes_queue_score=[0.0, 1.0], prompts=["a", "b"]) == [0.0, 1.0]


def test_a_run_that_is_silent_for_too_long_ends_the_training() -> None:
    silent = feed()
    silent.take = lambda count, timeout_s: []
    with pytest.raises(TimeoutError, match="no group of run run came in 2 s"):
        trl_callback.take_rows(silent, 2.0)


@pytest.mark.usefixtures("fits")
def test_adapters_that_no_job_asks_for_are_refused(tmp_path) -> None:
    old, new = (tmp_path / ".vllm_lora" / f"trl-policy-v{n}" for n in (1, 2))
    old.mkdir(parents=True)  # of an earlier training
    trainer = feed()
    trainer.published = lambda version: version
    worker = QueueWorker(trainer)
    worker._prepare(arguments(output_dir=str(tmp_path)), STATE)
    worker.update_model_version(1)
    new.mkdir()
    with pytest.raises(ConfigurationError, match="start vLLM without --enable-lora"):
        worker.update_model_version(2)


@pytest.mark.parametrize(
    ("processes", "idle_timeout_s", "warned"),
    [(2, None, True), (2, 1800.0, True), (2, 600.0, False), (1, None, False)],
)
def test_ranks_that_would_give_up_before_rank_0_has_groups_are_warned_of(
    monkeypatch, caplog, processes, idle_timeout_s, warned
) -> None:
    transformers = ModuleType("transformers")
    transformers.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    callback = trl_callback.ack_on_save(feed(), lambda *_: None, list, idle_timeout_s)
    callback.on_init_end(arguments(world_size=processes), STATE, None)
    assert ("ddp_timeout=1800" in caplog.text) == warned


@pytest.mark.usefixtures("fits")
def test_an_outage_at_the_first_version_is_waited_out(monkeypatch) -> None:
    monkeypatch.setattr(trl_async, "_RETRY_S", 0.0)
    answers = iter([RedisUnavailable("gone"), RedisUnavailable("gone"), 7])

    def published(_version: int) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    trainer = feed()
    trainer.published = published
    worker = QueueWorker(trainer)
    worker.update_model_version(1)
    assert worker._offset == 6
