"""Trajectories of an evaluation stay out of everything that models are trained on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from records import make_job, make_record

from envs.prompts import PromptItem, Prompts
from hermes_queue.bodies import codec
from hermes_queue.errors import EnvInfraError
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.sinks.selection import Filters, Selection
from workers.draft import Draft
from workers.record import record_of
from workers.rollout import _load


def record(*, evaluation: bool) -> ScoredTrajectory:
    return make_record(make_job()).model_copy(update={"evaluation": evaluation})


def group(member: ScoredTrajectory) -> TrajectoryGroup:
    fields: dict[str, Any] = {"size": 1, "members": (member,), "complete": True}
    names = ("run_id", "group_id", "env", "instance_id")
    fields |= {name: getattr(member, name) for name in names}
    return TrajectoryGroup(**fields, mean=1.0, std=0.0, created=0.0, finished=1.0)


def test_datasets_refuse_them_unless_a_person_allows_it() -> None:
    member = record(evaluation=True)
    selection = Selection(Filters(), {})
    assert selection.choose(group(member)) == []
    assert selection.refused == {"of an evaluation": 1}
    assert Selection(Filters(allow_evaluation=True), {}).choose(group(member)) == [member]
    assert Selection(Filters(), {}).choose(group(record(evaluation=False)))


@pytest.mark.parametrize("evaluation", [True, False])
def test_a_record_says_it_only_where_it_is_so(*, evaluation: bool) -> None:
    member = record(evaluation=evaluation)
    assert codec.decode_record(codec.encode_record(member)) == member
    assert ("evaluation" in json.loads(member.to_json())) is evaluation
    assert ScoredTrajectory.model_validate_json(member.to_json()) == member


async def test_a_trajectory_whose_item_cannot_be_loaded_is_marked_by_its_row() -> None:
    class Marked(PromptItem):
        evaluation: bool = False

    class Broken(Prompts):
        Item = Marked

        async def load(self, item: Any) -> Any:
            raise EnvInfraError("the task cannot be fetched")

    row = {"prompt": "Hi", "evaluation": True}
    draft = Draft(job=make_job(item=row), attempt=2, epoch=2)
    with pytest.raises(EnvInfraError):
        await _load(draft, Broken(), row)
    failed = record_of(draft, owner="w", host="h", failure=EnvInfraError("it cannot be fetched"))
    assert failed.evaluation
