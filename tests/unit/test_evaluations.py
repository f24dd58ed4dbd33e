"""Trajectories of an evaluation stay out of everything that models are trained on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from records import make_group, make_job, make_record
from sample_package import fix_patch, make_row

from envs.prompts import PromptItem, Prompts
from envs.swe.evaluations import is_benchmark
from envs.swe.item import Item
from envs.swe_smith import ENV as SWE
from hermes_queue.bodies import codec
from hermes_queue.errors import EnvInfraError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.sinks.selection import Filters, Selection
from producers.run.dataset import SourceRow
from producers.run.options import parse
from producers.run.selection import select
from producers.swe_smith import PRODUCER as SWE_SMITH
from workers.draft import Draft
from workers.record import record_of
from workers.rollout import load_row


def record(*, evaluation: bool) -> ScoredTrajectory:
    return make_record(make_job()).model_copy(update={"evaluation": evaluation})


def test_datasets_refuse_them_unless_a_person_allows_it() -> None:
    member = record(evaluation=True)
    selection = Selection(Filters(), {})
    assert selection.choose(make_group(member)) == []
    assert selection.refused == {"of an evaluation": 1}
    assert Selection(Filters(allow_evaluation=True), {}).choose(make_group(member)) == [member]
    assert Selection(Filters(), {}).choose(make_group(record(evaluation=False)))


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
        await load_row(draft, Broken(), row)
    failed = record_of(draft, owner="w", host="h", failure=EnvInfraError("it cannot be fetched"))
    assert failed.evaluation


@pytest.mark.parametrize(
    ("dataset", "split", "marked"),
    [
        ("SWE-bench/SWE-bench_Verified", "test", True),
        ("princeton-nlp/SWE-bench_Lite", "dev", True),
        ("SWE-bench/SWE-bench", "test", True),
        ("SWE-bench/SWE-bench", "train", False),
        ("ScaleAI/SWE-bench_Pro", "test", True),
        ("ByteDance-Seed/Multi-SWE-bench", "test", True),
        ("nebius/SWE-rebench-leaderboard", "test", True),
        ("SWE-bench/SWE-smith", "train", False),
        ("SWE-Gym/SWE-Gym", "train", False),
        ("nebius/SWE-rebench", "test", False),
        ("nebius/SWE-bench-extra", "train", False),
        ("/data/swe-bench_verified.jsonl", None, True),
        ("/data/SWE-bench_Lite/test-00000-of-00001.parquet", None, True),
        ("/data/SWE-bench/SWE-smith/train-00000.parquet", None, False),
        ("/data/SWE-bench/train-00000.parquet", None, False),
    ],
)
def test_a_benchmark_of_software_engineering_is_known_by_dataset_and_split(
    dataset: str, split: str | None, marked: bool
) -> None:
    assert is_benchmark(dataset, split) is marked


@pytest.mark.parametrize(
    ("columns", "marked"),
    [
        ({"instance_id": "astropy__astropy-7166"}, True),
        ({"instance_id": "django__django-11099"}, True),
        ({"instance_id": "pandas-dev__pandas-11099"}, False),
        ({"instance_id": "astropy__astropy.b16c7d12.func_pm__1"}, False),
        ({"image": "swebench/sweb.eval.x86_64.a_1776_b-1:latest"}, True),
        ({"image": "docker.io/swebench/sweb.eval.x86_64.a_1776_b-1:latest"}, True),
        ({"image": "xingyaoww/sweb.eval.x86_64.a_s_b-1:latest"}, False),
        ({"evaluation": True}, True),
        ({"evaluation": False}, False),
        ({"evaluation": None}, False),
    ],
)
def test_a_worker_marks_rows_of_such_benchmarks_whoever_sent_them(
    columns: dict[str, Any], marked: bool
) -> None:
    row = make_row(patch=fix_patch(), environment=None) | columns
    item = Item.model_validate(row)
    assert item.evaluation is marked
    assert ("evaluation" in item.model_dump(mode="json")) is marked


async def test_a_row_of_such_a_benchmark_makes_its_trajectory_an_evaluation() -> None:
    row = make_row(patch=fix_patch(), environment=None) | {"instance_id": "sympy__sympy-11400"}
    draft = Draft(job=make_job(item=row), attempt=1, epoch=1)
    await load_row(draft, SWE, row)
    assert draft.evaluation


class Split:
    """A dataset of one row."""

    def __init__(self, name: str, split: str) -> None:
        self.name, self.split = name, split

    def rows(self, seed: int | None = None) -> Any:
        del seed
        yield SourceRow("row 1", make_row(patch=fix_patch(), environment=None))


@pytest.mark.parametrize(
    ("name", "flags", "marked"),
    [
        ("SWE-bench/SWE-bench_Verified", [], True),
        ("SWE-bench/SWE-smith", [], False),
        ("SWE-bench/SWE-smith", ["--evaluation"], True),
    ],
)
def test_a_producer_marks_the_rows_of_such_a_dataset(
    name: str, flags: list[str], marked: bool
) -> None:
    [selected] = select(SWE_SMITH, SWE, Split(name, "test"), parse(SWE_SMITH, flags)).items
    assert selected.item().get("evaluation", False) is marked
