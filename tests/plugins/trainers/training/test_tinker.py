"""Groups through Tinker's SDK to a server of its protocol, into weights that survive kills."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import compress
from pathlib import Path

import pytest
import tinker
from records import make_group
from tinker_server import TinkerServer, tinker_server
from tinker_trainer import ratios
from trainer_groups import CASES, FIT, UNFIT, member, publish_group

from hermes_plugins.trainers.tinker import datums, newest_state, train
from hermes_plugins.trainers.versions import check
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.models import TokenSequence, TrajectoryGroup
from hermes_queue.policy import version_number
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.journal import FILE_NAME
from hermes_queue.trainers.rows import RowRefused, rows_of

TRAINER = Path(__file__).parents[1] / "support" / "tinker_trainer.py"


@pytest.fixture(scope="module")
def tinker_at() -> Iterator[tuple[TinkerServer, str]]:
    with tinker_server() as found:
        yield found


@pytest.fixture
def server(tinker_at: tuple[TinkerServer, str]) -> TinkerServer:
    """Without requests, models and states of other tests."""
    tinker_at[0].__init__()
    return tinker_at[0]


@pytest.fixture
def service(
    server: TinkerServer, tinker_at: tuple[TinkerServer, str]
) -> Iterator[tinker.ServiceClient]:
    with tinker.ServiceClient(base_url=tinker_at[1], api_key="tml-local") as client:
        yield client


def sampled(server: TinkerServer, first: int) -> TrajectoryGroup:
    """A group that the untrained weights sampled: two replies and the output of a tool."""
    members = []
    for sample, score in enumerate((0.0, 1.0, 1.0, 0.0)):
        prompt, tool = [first, 50 + sample], [60, 61]
        reply, odds = server.sample(server.untrained(), prompt, seed=100 * first + sample)
        last, last_odds = server.sample(server.untrained(), tool, seed=100 * first + sample + 50)
        tokens = TokenSequence(
            ids=(*prompt, *reply, *tool, *last),
            loss_mask=(0,) * 2 + (1,) * 4 + (0,) * 2 + (1,) * 4,
            logprobs=(0.0, 0.0, *odds, 0.0, 0.0, *last_odds),
        )
        members.append(member(f"i{first}", sample, score, tokens=[tokens], version="step-0"))
    return make_group(*members)


def run_trainer(
    ledger: Ledger, url: str, directory: Path, kill: str
) -> subprocess.CompletedProcess:
    command = [sys.executable, str(TRAINER), ledger.url, url, str(directory), "6", kill]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_sdk_has_what_the_adapter_uses() -> None:
    check("tinker")


@pytest.mark.parametrize("name", FIT)
def test_a_datum_is_its_row_shifted_by_one_with_no_advantage_on_context(name: str) -> None:
    rows = rows_of(CASES[name].group)
    made = datums([CASES[name].group])
    assert len(made) == CASES[name].rows
    for row, datum in zip(rows, made, strict=True):
        fields = datum.loss_fn_inputs
        assert [*datum.model_input.to_ints(), fields["target_tokens"].data[-1]] == [*row.ids]
        assert fields["target_tokens"].data == [*row.ids[1:]]
        assert fields["logprobs"].data == [*row.logprobs[1:]]
        assert fields["advantages"].data == [row.advantage * on for on in row.mask[1:]]
        assert [each.dtype for each in fields.values()] == ["int64", "float32", "float32"]


@pytest.mark.parametrize("name", UNFIT)
def test_an_unfit_group_has_no_datums(name: str) -> None:
    with pytest.raises(RowRefused) as refused:
        datums([CASES[name].group], temperature=1.0)
    assert refused.value.reason == CASES[name].refusal


def test_the_servers_logprobs_are_the_samplers_and_are_not_if_shifted(server, service) -> None:
    group = sampled(server, 1)
    client = service.create_lora_training_client(base_model="bigrams").result()
    answer = client.forward(datums([group]), "importance_sampling").result()
    found = ratios([group], answer)
    assert len(found) == 32
    assert found == pytest.approx([1.0] * 32, abs=1e-5)
    for row, output in zip(rows_of(group), answer.loss_fn_outputs, strict=True):
        theirs = list(compress(row.logprobs[:-1], row.mask[:-1]))
        ours = list(compress(output["logprobs"].data, row.mask[:-1]))
        assert max(abs(a - b) for a, b in zip(theirs, ours, strict=True)) > 0.1


async def test_steps_change_the_weights_publish_their_versions_and_save_states(
    ledger, server, service, tmp_path
) -> None:
    groups = {name: sampled(server, name) for name in (1, 2, 3)}
    for group in groups.values():
        publish_group(ledger, group)
    client = await service.create_lora_training_client(base_model="bigrams")
    seen: dict[int, list[float]] = {}
    live: list[tuple[str, int | None, int]] = []

    async def on_weights(path: str, version: int) -> None:
        live.append((path, version_of(ledger, "run"), version))

    options = {"run": "run", "directory": tmp_path, "group_size": 4, "url": ledger.url}
    with Feed("trainer", check=partial(rows_of, temperature=1.0), **options) as feed:
        last = await train(
            feed,
            client,
            resumed=None,
            steps=3,
            groups_per_step=1,
            optimizer=tinker.AdamParams(learning_rate=0.5),
            save_every=2,
            on_step=lambda step, found, answer: seen.update({step: ratios(found, answer)}),
            on_weights=on_weights,
        )
        assert (last, feed.counts.trained, feed.counts.saved) == (3, 3, 3)
    assert max(abs(ratio - 1) for ratio in seen[1]) < 1e-5
    assert all(max(abs(ratio - 1) for ratio in seen[step]) > 0.01 for step in (2, 3))
    sent = [each for each in server.requests if each in ("forward_backward", "optim_step")]
    assert sent == ["forward_backward", "optim_step"] * 3
    assert [(version_number(path), before, version) for path, before, version in live] == [
        (1, None, 1),
        (2, 1, 2),
        (3, 2, 3),
    ]
    assert version_of(ledger, "run") == 3
    assert [path.rpartition("/")[2] for path in server.states] == ["step-2", "step-3"]
    assert newest_state(tmp_path).path in server.states
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0
    [model] = server.models.values()
    assert [set(step) for step in model.weights.steps] == [{1}, {2}, {3}]
    assert not math.isclose(float(model.weights.logits[60].sum()), 0.0)


@pytest.mark.parametrize(
    ("kill", "journal_then", "recognised"),
    [("trained:3", 3, 0), ("sent:4", 4, 0), ("named:4", 4, 2)],
)
def test_a_killed_training_has_every_group_once_in_the_weights_that_survive(
    ledger, server, tinker_at, tmp_path, kill, journal_then, recognised
) -> None:
    names = [1, 2, 3, 4, 5, 6]
    for name in names:
        publish_group(ledger, sampled(server, name))
    journal = tmp_path / FILE_NAME
    killed = run_trainer(ledger, tinker_at[1], tmp_path, kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(journal.read_text().splitlines()) == journal_then
    finished = run_trainer(ledger, tinker_at[1], tmp_path, "")
    assert finished.returncode == 0, finished.stderr
    said = json.loads(finished.stdout)
    assert (said["last"], said["recognised"]) == (6, recognised)
    weights = server.states[newest_state(tmp_path).path]
    assert sorted(weights.steps) == [[name] * 4 for name in names]
    assert len(journal.read_text().splitlines()) == 6
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0


def test_sampler_paths_have_the_runs_version_after_going_back_to_a_state(
    ledger, server, tinker_at, tmp_path
) -> None:
    for name in (1, 2, 3, 4, 5, 6):
        publish_group(ledger, sampled(server, name))
    assert run_trainer(ledger, tinker_at[1], tmp_path, "trained:6").returncode < 0
    assert version_of(ledger, "run") == 5  # and the weights go back to step 4
    assert run_trainer(ledger, tinker_at[1], tmp_path, "").returncode == 0
    versions = [version_number(path) for path in server.samplers]
    assert versions == [1, 2, 3, 4, 5, 6, 7]
    assert version_of(ledger, "run") == 7


def test_the_example_trains_and_goes_on_from_its_state(ledger, server, tinker_at, tmp_path) -> None:
    for name in (1, 2, 3):
        publish_group(ledger, sampled(server, name))
    example = Path(__file__).parents[4] / "examples" / "tinker_loop.py"
    options = ["--run", "run", "--model", "bigrams", "--url", tinker_at[1], "--group-size", "4"]
    known = {"HERMES_QUEUE_REDIS_URL": ledger.url, "TINKER_API_KEY": "tml-local"}
    for steps in ("1", "3"):
        command = [sys.executable, str(example), *options, "--groups", "1", "--steps", steps]
        subprocess.run(
            [*command, "--out", str(tmp_path)], check=True, timeout=100, env={**os.environ, **known}
        )
    weights = server.states[newest_state(tmp_path).path]
    assert sorted(weights.steps) == [[name] * 4 for name in (1, 2, 3)]


async def test_an_unfit_group_becomes_a_dead_letter_and_another_one_takes_its_place(
    ledger, server, service, tmp_path
) -> None:
    publish_group(ledger, CASES["nothing_trained"].group)
    publish_group(ledger, sampled(server, 1))
    client = await service.create_lora_training_client(base_model="bigrams")
    options = {"run": "run", "directory": tmp_path, "group_size": 4, "url": ledger.url}
    with Feed("trainer", **options) as feed:
        last = await train(feed, client, resumed=None, steps=1, groups_per_step=1)
        assert (last, feed.counts.refused) == (1, {"nothing_trained": 1})
    assert ledger.client.xlen("hq:dead") == 1
