"""`--judge FILE`: the judge is in every job of the run, or the file is refused by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envs.gsm8k import ENV
from hermes_queue.bodies.codec import decode_job, encode_job
from hermes_queue.broker.submission import make_jobs
from hermes_queue.errors import InputError
from hermes_queue.models import JudgeSpec
from producers.gsm8k import PRODUCER
from producers.run.dataset import open_dataset
from producers.run.options import parse
from producers.run.plan import make_plan, read_judge
from producers.run.selection import select

TEXT = 'model = "m"\nprompt = "p"\nsampling = { temperature = 0.0 }\n'


def plan_of(*flags: str) -> tuple[Any, Any]:
    options = parse(PRODUCER, ["--items", "1", "--run-id", "r", *flags])
    dataset = open_dataset(PRODUCER.dataset, bundled=PRODUCER.bundled)
    return make_plan(PRODUCER, ENV, options), select(PRODUCER, ENV, dataset, options)


def test_the_judge_of_a_run_is_in_its_jobs_and_all_producers_agree_on_it(tmp_path: Path) -> None:
    file = tmp_path / "judge.toml"
    file.write_text(TEXT)
    plan, selection = plan_of("--judge", str(file))
    [job] = plan.jobs(selection, lambda _: True)
    assert decode_job(encode_job(job)).judge == read_judge(file)
    assert plan.config("d")["judge"]["prompt"] == "p"


def test_jobs_that_a_program_sends_may_have_a_judge() -> None:
    judge = JudgeSpec(model="m", prompt="p")
    [job] = make_jobs(env="gsm8k", items=[{"instance_id": "i"}], judge=judge)
    assert decode_job(encode_job(job)).judge == judge


def test_a_job_without_a_judge_has_no_such_field() -> None:
    plan, selection = plan_of()
    [job] = plan.jobs(selection, lambda _: True)
    assert b"judge" not in encode_job(job)
    assert "judge" not in plan.config("d")


def test_a_judge_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "judge.json"
    file.write_text('{"model": "m", "prompt": "p"}')
    assert read_judge(file).model == "m"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model", "Expected '=' after a key"),
        ('model = "m"', "prompt: Field required"),
        (TEXT + "more = 1", "more: Extra inputs are not permitted"),
        (TEXT + "timeout_s = 0", "timeout_s: Input should be greater than 0"),
        ("x" * 70_000, "more than 65,536 bytes"),
    ],
)
def test_a_bad_file_is_named_with_its_key(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "judge.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"--judge .*judge\.toml") as caught:
        read_judge(file)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_judge(tmp_path / "judge.toml")
