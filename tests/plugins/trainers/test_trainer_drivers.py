"""The adapters of verl, SkyRL and prime-rl without these; training/ has the rest."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_plugins.trainers import verl
from hermes_plugins.trainers.prime_rl import _options
from hermes_plugins.trainers.skyrl import QueueGenerator, with_acks
from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError


def test_importing_the_adapters_loads_no_trainer():
    script = (
        "import sys, hermes_plugins.trainers.verl, hermes_plugins.trainers.skyrl, "
        "hermes_plugins.trainers.prime_rl\n"
        "heavy = {'numpy', 'prime_rl', 'ray', 'skyrl', 'torch', 'transfer_queue', 'verl'}\n"
        "assert heavy.isdisjoint(sys.modules), heavy & {*sys.modules}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["verl", "skyrl", "prime_rl"])
def test_a_trainer_that_is_not_installed_is_asked_for(name):
    with pytest.raises(ConfigurationError, match="pip install"):
        check(name)


def test_a_generator_asks_for_its_trainer_at_once():
    with pytest.raises(ConfigurationError, match=r"skyrl==0\.3\.0"):
        QueueGenerator(SimpleNamespace())  # type: ignore[arg-type]


def test_verls_classes_say_which_option_is_missing(monkeypatch):
    monkeypatch.setattr(verl, "_driver", None)
    with pytest.raises(ConfigurationError, match=r"checkpoint_callback_class=.*AckOnCheckpoint"):
        verl.QueueAgentLoopManager().generate_sequences({"uid": ["u"]})


def test_verls_checkpoint_is_acknowledged_when_its_tracker_names_it(monkeypatch, tmp_path):
    saved: list[int] = []
    driver = SimpleNamespace(feed=SimpleNamespace(saved=saved.append))
    monkeypatch.setattr(verl, "_Driver", lambda config: driver)
    monkeypatch.setattr(verl, "_driver", None)
    callback = verl.AckOnCheckpoint(None)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("8")  # of a training that this one has gone back behind
    for step, complete in ((5, None), (6, "5"), (7, "7")):
        if complete:
            tracker.write_text(complete)
        folder = str(tmp_path / f"global_step_{step}")
        callback.on_save(trainer=None, global_step=step, checkpoint_dir=folder, async_save=True)
    assert saved == [5, 7]


def test_a_checkpoint_that_skyrl_writes_in_the_background_is_waited_for():
    calls: list[Any] = []

    class Trainer:
        global_step, has_critic = 4, False
        dispatch = SimpleNamespace(finalize_pending_saves=calls.append)
        generator = SimpleNamespace(saved=calls.append)

        def save_checkpoints(self) -> str:
            calls.append("begun")
            return "path"

    assert with_acks(Trainer)().save_checkpoints() == "path"
    assert calls == ["begun", "policy", 4]


def test_prime_rls_orchestrator_needs_few_options():
    given = "--run r --run-dir d --groups-per-step 2 --group-size 8 --seq-len 64".split()
    options = _options().parse_args(given)
    assert (options.name, options.ranks, options.window, options.max_lag) == (
        "prime-rl",
        1,
        0,
        None,
    )
