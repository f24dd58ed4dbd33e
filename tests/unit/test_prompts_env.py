"""The env of plain prompts: rows, and records without a score."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError
from records import make_job, make_record

from envs.base import task_of
from envs.prompts import ENV, PromptItem, PromptMessage
from hermes_queue.errors import InputError
from hermes_queue.models import ScoredTrajectory
from producers.prompts import PRODUCER
from producers.run.dataset import open_dataset
from producers.run.options import parse
from producers.run.selection import select


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


ASKED = {"role": "user", "content": "a"}
FORMS = {
    "trl": {"prompt": [{"role": "system", "content": "s"}, ASKED], "answer": "ignored"},
    "verl": {"prompt": [ASKED], "reward_model": {"ground_truth": "7"}, "data_source": "x"},
    "inspect": {"input": "a", "target": "b"},
    "inspect messages": {"input": [ASKED], "target": ["b"]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "openai batch": {
        "custom_id": "one",
        "method": "POST",
        "body": {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        },
    },
}


def rows_of(path: Path) -> list[PromptItem]:
    """The items that the producer makes of a file."""
    arguments = parse(PRODUCER, ["--dataset", str(path), "--items", "all"])
    selection = select(PRODUCER, ENV, open_dataset(str(path), bundled=path), arguments)
    return [PromptItem.model_validate(selected.item()) for selected in selection.items]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_prompts_in_the_public_forms_are_read(tmp_path: Path, form: str, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text(json.dumps(FORMS[form]) + "\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([FORMS[form]]), path)
    [item] = rows_of(path)
    assert item.conversation[-1].model_dump() == ASKED
    assert item.conversation[:-1] == tuple(
        PromptMessage(role="system", content="s") for _ in range(form == "trl")
    )
    answered = form in ("inspect", "sharegpt", "alpaca")
    assert item.response == ("b" if answered else "")
    assert (item.instance_id == "one") == (form == "openai batch")


def test_what_is_asked_of_an_alpaca_row_has_its_input(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"instruction": "Add.", "input": "1 and 2"}\n')
    assert rows_of(tmp_path / "rows.jsonl")[0].prompt == "Add.\n\n1 and 2"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": ["a"]}, "messages.0"),
        ({"input": 7}, "messages"),
        ({"conversations": [{"from": "ape", "value": "a"}]}, "messages.0.role"),
        (
            {"body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}},
            "messages.0.content",
        ),
    ],
)
def test_a_row_that_only_looks_like_one_of_them_is_refused(
    tmp_path: Path, row: object, words: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=rf"rows.jsonl:1: {words}"):
        rows_of(tmp_path / "rows.jsonl")


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
