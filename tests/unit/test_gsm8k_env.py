"""The GSM8K env end to end without a queue: item, agent, tools, verdict."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from slot_bench import leased_slot

import producers
from envs.base import load_env
from envs.gsm8k import Gsm8k, Gsm8kItem
from hermes_queue.agent import AgentScript, make_chat, run_agent
from hermes_queue.models import AgentSpec, Limits, Message, ToolCall
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import Toolbox, ToolContext
from hermes_queue.tools.calculator import evaluate

ENV = Gsm8k()
ROWS = [
    json.loads(line)
    for line in (Path(producers.__path__[0]) / "data" / "gsm8k.jsonl").read_text().splitlines()
]
ITEMS = [ENV.Item.model_validate(row) for row in ROWS]


async def play(slot: SlotContext, item: Gsm8kItem, kind: str, **params: Any) -> tuple[float, str]:
    """Score and reason of one agent at one item."""

    async def oracle() -> tuple[list[ToolCall], str]:
        return await ENV.oracle(item, slot), ENV.oracle_answer(item)

    await ENV.setup(item, slot)
    result = await run_agent(
        make_chat(
            AgentSpec(kind=kind, params=params),
            AgentScript(oracle=oracle, tamper=ENV.tamper(item)),
            ModelSettings(),
        ),
        Toolbox(ENV.tools, ToolContext(slot, 10.0, 4096)),
        ENV.prompt(item),
        limits=Limits(),
        sampling={},
        deadline=time.monotonic() + 60,
    )
    assert result.tool_calls.error == 0
    verdict = await ENV.verify(item, slot, result.messages)
    json.dumps(dict(verdict.report))
    return verdict.score, verdict.report["reason"]


def test_it_is_found_by_name() -> None:
    assert load_env("gsm8k").name == "gsm8k"


async def test_the_oracle_is_right_on_every_bundled_row() -> None:
    assert len(ITEMS) >= 12
    async with leased_slot() as slot:
        for item in ITEMS:
            assert await play(slot, item, "oracle") == (1.0, "right"), item.instance_id


async def test_nop_scores_zero_by_result() -> None:
    async with leased_slot() as slot:
        assert await play(slot, ITEMS[0], "nop") == (0.0, "no_answer")


async def test_every_way_of_tampering_scores_zero() -> None:
    async with leased_slot() as slot:
        for item in (ITEMS[0], ITEMS[1], ITEMS[-2]):
            for case in ENV.tamper(item):
                score, _ = await play(slot, item, "tamper", case=case)
                assert score == 0.0, (item.instance_id, case)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.instance_id)
async def test_the_annotations_of_bundled_rows_add_up(item: Gsm8kItem) -> None:
    steps = [s.split(">>")[0].split("=") for s in item.answer.split("<<")[1:]]
    assert steps
    for expression, value in steps:
        assert evaluate(expression) == evaluate(value)
    assert evaluate(steps[-1][1]) == item.gold


def test_bundled_rows_have_ids_of_their_own_and_prompts_without_the_answer() -> None:
    assert len({item.instance_id for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        prompt = "\n".join(m.content or "" for m in ENV.prompt(item))
        assert item.question in prompt
        assert item.answer not in prompt
        assert "####" not in prompt


async def test_only_the_last_thing_the_agent_said_counts() -> None:
    item = ITEMS[0]
    right = ENV.oracle_answer(item)
    for transcript, score in (
        ([Message(role="assistant", content=right)], 1.0),
        ([Message(role="assistant", content=right), Message(role="assistant", content="?")], 0.0),
        ([Message(role="assistant", content=right), Message(role="assistant")], 1.0),
        ([Message(role="user", content=right)], 0.0),
        ([Message(role="tool", content=right, tool_call_id="c")], 0.0),
        ([], 0.0),
    ):
        verdict = await ENV.verify(item, None, transcript)  # type: ignore[arg-type]
        assert verdict.score == score


def test_an_item_without_an_id_gets_one_from_its_question() -> None:
    row = {"question": "How many?", "answer": "#### 1"}
    first = Gsm8kItem.model_validate(row)
    assert first == Gsm8kItem.model_validate({**row, "answer": "#### 1", "instance_id": None})
    assert first.instance_id.startswith("gsm8k-")
    other = Gsm8kItem.model_validate({**row, "question": "How few?"})
    assert other.instance_id != first.instance_id


def test_a_validated_item_validates_again() -> None:
    for item in ITEMS:
        assert Gsm8kItem.model_validate(item.model_dump()) == item


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": "x"}, "question"),
        ({"question": "x"}, "answer"),
        ({"question": " ", "answer": "#### 1"}, "question"),
        ({"question": "x", "answer": "42"}, "answer"),
        ({"question": "x", "answer": "#### many"}, "answer"),
        ({"question": "x", "answer": "#### 1 or 2"}, "answer"),
        ({"question": 3, "answer": "#### 1"}, "question"),
        ({"question": None, "answer": "#### 1"}, "question"),
    ],
)
def test_an_unusable_row_is_refused_by_field(row: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Gsm8kItem.model_validate(row)
    assert field in {str(error["loc"][0]) for error in caught.value.errors()}


async def test_the_oracle_skips_annotations_that_are_no_arithmetic() -> None:
    item = Gsm8kItem.model_validate(
        {"question": "x", "answer": "<<__import__('os')=1>> <<1+1=2>>2\n#### 2"}
    )
    (call,) = await ENV.oracle(item, None)  # type: ignore[arg-type]
    assert "print(1+1)" in call.function.arguments
