"""Finished groups as episodes of AReaL, checked by AReaL's own functions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from areal.api.cli_args import NormConfig
from areal.api.workflow_api import RolloutWorkflow
from areal.infra.workflow_executor import check_trajectory_format
from areal.utils.data import Normalization, concat_padded_tensors
from trainer_groups import CASES, FIT, UNFIT, group_of, publish_group, sequence

from hermes_plugins.trainers.areal import GROUP, QueueWorkflow, tensors
from hermes_plugins.trainers.versions import check
from hermes_queue.ledger import Ledger
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import RowRefused, rows_of

ENGINE = SimpleNamespace(get_version=lambda: 9)


@pytest.fixture
def workflow(ledger: Ledger, tmp_path: Path) -> Iterator[QueueWorkflow]:
    options = {"run": "run", "directory": tmp_path, "group_size": 4, "url": ledger.url}
    with Feed("trainer", check=partial(rows_of, sequences="longest"), **options) as feed:
        yield QueueWorkflow(feed)


def test_areal_has_what_the_adapter_uses_and_takes_it_for_a_workflow(workflow) -> None:
    check("areal")
    assert isinstance(workflow, RolloutWorkflow)


@pytest.mark.parametrize("name", FIT)
def test_areal_accepts_the_rows_of_a_group(name: str) -> None:
    made = tensors(CASES[name].group, number=3, unknown=9)
    assert check_trajectory_format(made, batch_size=4, expected_keys=set(made))
    rows = rows_of(CASES[name].group, sequences="longest")
    for n, row in enumerate(rows):
        assert made["input_ids"][n].tolist() == [*row.ids]
        assert made["loss_mask"][n].tolist() == [*row.mask]
        assert made["logprobs"][n].tolist() == [*row.logprobs]
        assert made["versions"][n].tolist() == [row.version if on else -1 for on in row.mask]
        assert made["attention_mask"][n].all()
    assert made["rewards"].tolist() == [row.score for row in rows]
    assert made[GROUP].tolist() == [3] * 4


@pytest.mark.parametrize("name", UNFIT)
def test_an_unfit_group_has_no_rows(name: str) -> None:
    with pytest.raises(RowRefused):
        tensors(CASES[name].group)


def test_shorter_rows_are_padded_at_the_end_and_unknown_versions_are_the_engines() -> None:
    group = group_of("i").group
    first = group.members[0]
    turns = tuple(turn.model_copy(update={"policy_version": None}) for turn in first.turns)
    short = first.model_copy(
        update={"turns": turns, "sequences": (sequence(5, ((2, False), (2, True))),)}
    )
    made = tensors(group.model_copy(update={"members": (short, *group.members[1:])}), unknown=9)
    assert made["attention_mask"][0].tolist() == [True] * 4 + [False] * 8
    assert made["versions"][0].tolist() == [-1, -1, 9, 9] + [-1] * 8
    assert made["loss_mask"][0].tolist() == [0, 0, 1, 1] + [0] * 8


def test_areal_normalises_a_batch_of_groups_by_group() -> None:
    groups = [group_of("a", (0.0, 1.0, 1.0, 0.0)).group, group_of("b", (5.0, 5.0, 5.0, 9.0)).group]
    batch = concat_padded_tensors([tensors(group, number=n) for n, group in enumerate(groups)])
    assert batch[GROUP].tolist() == [0] * 4 + [1] * 4
    norm = Normalization(NormConfig(mean_level="group", std_level=None, group_size=4))
    found = norm(batch["rewards"])
    assert torch.allclose(found, torch.tensor([-0.5, 0.5, 0.5, -0.5, -1.0, -1.0, -1.0, 3.0]))


async def test_episodes_are_groups_and_a_batch_says_which_ones_were_trained(
    ledger, workflow
) -> None:
    for name in "abc":
        publish_group(ledger, group_of(name).group)
    cancelled = asyncio.create_task(workflow.arun_episode(ENGINE, {}))
    await asyncio.sleep(0)
    cancelled.cancel()
    batch = await asyncio.gather(*(workflow.arun_episode(ENGINE, {}) for _ in range(3)))
    assert sorted(int(each[GROUP][0]) for each in batch) == [1, 2, 3]
    await asyncio.to_thread(workflow.trained, 0, batch[:2])
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 3
    workflow.saved(0)
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 1
    assert workflow.published(10) == 10  # the engine's version was 9
    assert workflow.feed.counts.trained == 2
