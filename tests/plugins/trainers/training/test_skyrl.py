"""Groups of the queue in SkyRL: its validator and its merging, and its trainers' own loops.

What no CPU can do is left out: the model. A list of trained rows stands in for it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typing_extensions
from numbered_groups import publish_groups
from trainer_groups import CASES, FIT

from hermes_plugins.trainers.skyrl import QueueGenerator
from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.journal import FILE_NAME

pytestmark = pytest.mark.filterwarnings("ignore")  # of SkyRL, Ray and torch
TRAINER = Path(__file__).parents[1] / "support" / "skyrl_trainer.py"


@pytest.fixture(scope="module", autouse=True)
def skyrl() -> Iterator[None]:
    """SkyRL 0.3 gives pydantic types that it takes with Python 3.12 alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typing, "TypedDict", typing_extensions.TypedDict)
        check("skyrl")
        yield


@pytest.mark.parametrize("mode", ["sync", "fully_async"])
def test_a_killed_trainer_has_every_group_once_in_the_weights_that_survive(ledger, tmp_path, mode):
    publish_groups(ledger, 6)
    command = [sys.executable, "-W", "ignore", str(TRAINER), ledger.url, str(tmp_path), mode]
    for kill in ("trained:3", "saved:4", ""):
        ended = subprocess.run([*command, kill], capture_output=True, text=True, timeout=200)
        assert ended.returncode == (-signal.SIGKILL if kill else 0), ended.stderr[-3000:]
    assert "recognised 2" in ended.stdout
    weights = json.loads((tmp_path / "global_step_6" / "policy" / "weights.json").read_text())
    assert sorted(weights) == [[n, sample] for n in range(6) for sample in range(2)]
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0
    assert version_of(ledger, "run") is not None


def generator(group_size: int = 4, *, step_wise: bool = False, feed: Any = None) -> QueueGenerator:
    options = SimpleNamespace(group_size=group_size)
    feed = feed or SimpleNamespace(options=options, require=lambda check: None)
    return QueueGenerator(feed, step_wise=step_wise, temperature=1.0)


def asked(prompts: int, size: int, phase: str = "train", step: int = 1) -> Any:
    """What SkyRL asks a generator, by its own function."""
    from skyrl.train.generators.utils import prepare_generator_input

    rows = [
        {"prompt": [], "env_class": "none", "env_extras": {}, "uid": str(n)} for n in range(prompts)
    ]
    return prepare_generator_input(rows, size, {}, "none", phase, step)[0]


@pytest.mark.parametrize("step_wise", [False, True])
def test_skyrl_validates_fit_groups(step_wise):
    from skyrl.train.utils.trainer_utils import validate_generator_output

    groups: Any = [CASES[name].group for name in FIT]
    slots = asked(len(groups), 4)["trajectory_ids"]
    output = generator(step_wise=step_wise)._output(groups, slots)
    validate_generator_output(4 * len(groups), output, step_wise=step_wise)
    rows = zip(output["prompt_token_ids"], output["response_ids"], strict=True)
    whole = [tuple(prompt + response) for prompt, response in rows]
    members = [member for group in groups for member in group.members]
    expected = [member.sequences if step_wise else member.sequences[:1] for member in members]
    assert whole == [sequence.ids for sequences in expected for sequence in sequences]
    logprobs = [tuple(row) for row in output["rollout_logprobs"]]
    assert all(mask[0] == 1 for mask in output["loss_masks"])
    trained = [sequence for sequences in expected for sequence in sequences]
    assert logprobs == [each.logprobs[each.loss_mask.index(1) :] for each in trained]


def test_the_score_is_on_the_last_row_of_a_trajectory():
    from skyrl.train.generators.utils import concatenate_generator_outputs

    group: Any = CASES["two_sequences"].group
    slots = asked(1, 4)["trajectory_ids"]
    output = generator(step_wise=True)._output([group], slots)
    assert output["rewards"] == [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert output["is_last_step"] == [False, True] * 4
    both = concatenate_generator_outputs([output], step_wise=True)
    assert [each.repetition_id for each in both["trajectory_ids"]] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("size", "phase", "says"),
    [(4, "eval", "eval_interval=-1"), (3, "train", "n_samples_per_prompt=4")],
)
async def test_what_skyrl_cannot_do_with_groups_of_the_queue_is_refused(size, phase, says):
    with pytest.raises(ConfigurationError, match=says):
        await generator(4).generate(asked(2, size, phase))


async def test_a_group_of_a_prompt_that_skyrl_gave_up_is_handed_out_again(ledger, tmp_path):
    publish_groups(ledger, 2)
    with Feed("trainer", run="run", directory=tmp_path, group_size=2, url=ledger.url) as feed:
        made = generator(feed=feed)
        outputs = [await made.generate(asked(1, 2, step=n)) for n in (1, 2, 3)]
    first = [each["prompt_token_ids"][0][0] for each in outputs]
    assert first == [0, 0, 0]


async def test_groups_that_a_cancelled_call_took_are_not_lost(ledger: Ledger, tmp_path):
    with Feed("trainer", run="run", directory=tmp_path, group_size=2, url=ledger.url) as feed:
        made = generator(feed=feed)
        waiting = asyncio.create_task(made.generate(asked(1, 2)))
        await asyncio.sleep(0.05)
        waiting.cancel()
        publish_groups(ledger, 1)
        output = await made.generate(asked(1, 2))
    assert [row[0] for row in output["prompt_token_ids"]] == [0, 0]
