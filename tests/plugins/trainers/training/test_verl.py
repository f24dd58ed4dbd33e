"""Groups of the queue in verl: its rows, and its trainer loop over a real TransferQueue.

What no CPU can do is left out: the model. A list of trained trajectories stands in for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_groups import CASES, FIT, UNFIT, group_of, publish_group
from transfer_queue_host import ANSWER, COMMAND

from hermes_plugins.trainers import verl
from hermes_plugins.trainers.versions import check
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.trainers.journal import FILE_NAME
from hermes_queue.trainers.rows import RowRefused, rows_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl, Ray and torch
TRAINER = Path(__file__).parents[1] / "support" / "verl_trainer.py"
Run = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def beside_ray() -> Iterator[Run]:
    """Runs commands beside a Ray with an empty TransferQueue."""
    host = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with host as process:
        assert process.stdin
        assert process.stdout

        def run(*command: object) -> SimpleNamespace:
            process.stdin.write(json.dumps([str(each) for each in command]) + "\n")
            process.stdin.flush()
            while not (line := process.stdout.readline()).startswith(ANSWER):
                assert process.poll() is None
            return SimpleNamespace(**json.loads(line.removeprefix(ANSWER)))

        yield run
        process.stdin.close()


def publish(ledger: Ledger, *instances: str) -> None:
    for name in instances:
        publish_group(ledger, group_of(name, scores=(0.0, 1.0)).group)


def weights(directory: Path) -> list[str]:
    """The trajectories in the newest checkpoint."""
    step = (directory / "latest_checkpointed_iteration.txt").read_text()
    return json.loads((directory / f"global_step_{step}" / "actor").read_text())


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_a_killed_trainer_has_every_group_once_in_the_weights_that_survive(
    ledger, tmp_path, beside_ray, mode
):
    publish(ledger, *"abcdefghijkl")
    command = (sys.executable, "-W", "ignore", TRAINER, ledger.url, tmp_path, mode, 6)
    for kill in ("trained:3", "saved:4", ""):
        ended = beside_ray(*command, kill)
        assert ended.returncode == (-signal.SIGKILL if kill else 0), ended.stderr[-3000:]
    assert "recognised 4" in ended.stdout
    trained = weights(tmp_path)
    assert len(trained) == len(set(trained)) == 24
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    updates = 1 if mode == "sync" else 2
    assert [line["step"] for line in lines] == sorted([1, 2, 3, 4, 5, 6] * updates)
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0
    assert version_of(ledger, "run") is not None


def fields_of(row: Any) -> dict[str, Any]:
    return verl._fields(row, 3)


def test_the_installed_version_fits():
    check("verl")


@pytest.mark.parametrize("name", FIT)
def test_verl_takes_the_rows_token_for_token(name):
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = rows_of(CASES[name].group, advantage=None, temperature=1.0)
    table = list_of_dict_to_tensordict([fields_of(row) for row in rows])
    assert len(table) == CASES[name].rows
    for n, row in enumerate(rows):
        found = {key: table[key][n].tolist() for key in ("prompts", "responses", "response_mask")}
        assert found["prompts"] + found["responses"] == list(row.ids)
        assert table["input_ids"][n].tolist() == list(row.ids)
        assert found["response_mask"] == list(row.mask[row.cut :])
        assert table["rollout_log_probs"][n].tolist() == list(row.logprobs[row.cut :])
        assert sum(table["rm_scores"][n].tolist()) == table["rm_scores"][n].tolist()[-1]


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_groups_are_refused_before_verl_sees_them(name):
    with pytest.raises(RowRefused) as refused:
        rows_of(CASES[name].group, advantage=None, temperature=1.0)
    assert refused.value.reason == CASES[name].refusal


def test_both_sequences_of_a_trajectory_get_its_advantage_by_verls_own_function():
    import numpy as np
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = rows_of(CASES["two_sequences"].group, advantage=None)
    table = list_of_dict_to_tensordict([fields_of(row) for row in rows])
    names = sorted({row.trajectory_id for row in rows})
    keys = [f"u_{names.index(row.trajectory_id)}_{row.index}" for row in rows]
    picked = table.select("response_mask", "rm_scores").to_padded_tensor()
    data = DataProto(batch=picked, non_tensor_batch={"uid": np.array(["u"] * len(rows), object)})
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    made = compute_advantage_for_multi_trajectories(data, keys, AdvantageEstimator.GRPO)
    mask = data.batch["response_mask"]
    first = [made.batch["advantages"][n][mask[n].argmax()].item() for n in range(len(rows))]
    assert first[0::2] == first[1::2]
    assert [round(value, 3) for value in first[0::2]] == [-0.866, 0.866, 0.866, -0.866]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A driver whose feed is not asked."""
    made = SimpleNamespace(slots=[], rows=partial(rows_of, advantage=None), feed=None)
    monkeypatch.setattr(verl, "_driver", made)
    return made


def test_prompts_are_slots_in_verls_own_type(driver):
    import numpy as np
    from verl.utils import tensordict_utils

    prompts = tensordict_utils.get_tensordict({"uid": np.array(["u1", "u2"], dtype=object)})
    verl.QueueAgentLoopManager().generate_sequences(prompts)
    assert driver.slots == ["u1", "u2"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("trainer.test_freq", 5, "test_freq=-1"),
        ("trainer.val_before_train", True, "val_before_train=false"),
        ("trainer.v1.sampler.custom_sampler.name", None, "pkg://hermes_plugins.trainers.verl"),
    ],
)
def test_what_verl_cannot_do_with_groups_of_the_queue_is_refused(
    driver, tmp_path, key, value, says
):
    from omegaconf import OmegaConf
    from verl_trainer import config_of

    from hermes_queue.errors import ConfigurationError

    config = config_of(tmp_path)
    OmegaConf.update(config, key, value)
    with pytest.raises(ConfigurationError, match=says):
        verl.QueueAgentLoopManager.create(config)
