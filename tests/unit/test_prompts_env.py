"""The env of plain prompts: rows, and records without a score."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError
from records import make_job, make_record

from envs.base import task_of
from envs.prompts import ENV, PromptItem
from hermes_queue.models import ScoredTrajectory
from producers.prompts import PRODUCER


def test_a_prompt_becomes_the_messages_of_its_row() -> None:
    item = PromptItem.model_validate({"prompt": "Hi", "system": "Be brief.", "topic": "ignored"})
    assert [(m.role, m.content) for m in ENV.prompt(item)] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert task_of(ENV, item) == "Be brief.\n\nHi"


def test_equal_prompts_are_one_instance_and_a_given_name_is_kept() -> None:
    one, other = (PromptItem.model_validate({"prompt": text}) for text in ("a", "b"))
    same = PromptItem.model_validate({"messages": [{"role": "user", "content": "a"}]})
    assert one.instance_id == same.instance_id != other.instance_id
    assert PromptItem.model_validate({"prompt": "a", "instance_id": "x"}).instance_id == "x"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, "either `prompt`, a text, or `messages`"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "either `prompt`"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "must be of the role user"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "a"}], "system": "b"}, "as the first one"),
        ({"prompt": "x" * 1_000_001}, "more than 1000000 characters"),
    ],
)
def test_a_row_that_is_no_prompt_is_refused_with_the_field(row: object, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        PromptItem.model_validate(row)


def test_the_bundled_rows_are_prompts_with_names_of_their_own() -> None:
    rows = [json.loads(line) for line in PRODUCER.bundled.read_text("utf-8").splitlines()]
    items = [PromptItem.model_validate(row) for row in rows]
    assert len({item.instance_id for item in items}) == len(items) == 5
    assert all(ENV.oracle_answer(item) == item.response != "" for item in items)


def test_an_unscored_record_is_of_version_two_and_has_neither_score_nor_failure() -> None:
    whole = make_record(make_job(), 1.0).model_dump() | {"score": None, "status": "unscored"}
    with pytest.raises(ValidationError, match="an unscored record has schema_version 2"):
        ScoredTrajectory.model_validate(whole)
    record = ScoredTrajectory.model_validate(whole | {"schema_version": 2})
    assert (record.score, record.failure) == (None, None)
    with pytest.raises(ValidationError, match="a completed trajectory has a score"):
        ScoredTrajectory.model_validate(whole | {"schema_version": 2, "score": 0.0})
