"""From a call as the model wrote it to an answer: routing, validation, capping."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

import pytest

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import FunctionCall, ToolCall
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools import Toolbox, ToolContext, load_tool, make_call
from hermes_queue.tools.toolbox import cap


def worker_only(*names: str, observation_bytes: int = 16_384) -> Toolbox:
    """A toolbox of tools that run in the worker, so that there is nothing behind the slot."""
    slot = Slot("s", "t", "b", "/workspace", SlotSpec())
    context = SlotContext(cast(Any, None), slot, deadline=time.monotonic() + 60)
    return Toolbox(names, ToolContext(context, 10.0, observation_bytes))


def raw(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="c", function=FunctionCall(name=name, arguments=arguments))


def test_every_tool_loads_and_describes_a_closed_schema() -> None:
    assert {"terminal", "read_file", "write_file", "patch", "search_files"} <= set(
        extensions.own("tool")
    )
    for name in extensions.own("tool"):
        schema = load_tool(name).schema()
        function = schema["function"]
        assert function["name"] == name
        assert function["description"]
        assert function["parameters"]["type"] == "object"
        assert function["parameters"]["additionalProperties"] is False
        json.dumps(schema)


def test_a_tool_of_ones_own_is_named_by_module_and_attribute() -> None:
    assert load_tool("hermes_queue.tools.submit:TOOL") is load_tool("submit")


@pytest.mark.parametrize(
    "name",
    ["no_such", "base", "toolbox", "os:path", "no.such.module:X", "json:NO", ":", "../terminal"],
)
def test_an_unknown_tool_name_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="tool"):
        load_tool(name)


def test_the_error_for_an_unknown_tool_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"known: calculator, .*terminal"):
        load_tool("termnal")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="submit"):
        worker_only("submit", "hermes_queue.tools.submit:TOOL")


async def test_an_unknown_tool_in_a_call_is_answered_with_the_available_ones() -> None:
    outcome = await worker_only("calculator", "submit").call(raw("bash", "{}"))
    assert not outcome.schema_valid
    assert not outcome.ok
    assert "Available tools: calculator, submit" in outcome.text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"expression": "1+', "not valid JSON"),
        ('"1+1"', "not an object"),
        ("[]", "not an object"),
        ("null", "not an object"),
        ("{}", "expression: Field required"),
        ("", "expression: Field required"),
        ('{"expression": 2}', "expression: Input should be a valid string"),
        ('{"expression": "2", "precision": 3}', "precision: Extra inputs"),
        ('{"expression": "\\ud800"}', "expression: "),
        ('{"\\ud800": "2"}', "arguments: Input should be"),
        ("[" * 100_000, "nested too deeply"),
        ('{"expression": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
async def test_wrong_arguments_are_answered_with_the_field_and_the_schema(
    arguments: str, named: str
) -> None:
    outcome = await worker_only("calculator").call(raw("calculator", arguments))
    assert not outcome.schema_valid
    assert named in outcome.text
    assert '"required": ["expression"]' in outcome.text


async def test_nul_in_a_command_or_path_is_answered_not_raised() -> None:
    toolbox = worker_only("terminal", "read_file")
    for call in (
        make_call("c", "terminal", command="echo \0"),
        make_call("c", "read_file", path="a\0b"),
    ):
        outcome = await toolbox.call(call)
        assert not outcome.schema_valid
        assert "NUL" in outcome.text


async def test_submit_ends_the_trajectory() -> None:
    outcome = await worker_only("submit").call(make_call("c", "submit", summary="fixed"))
    assert outcome.submits
    assert outcome.ok


async def test_answers_to_malformed_calls_are_capped_too() -> None:
    toolbox = worker_only("calculator", observation_bytes=300)
    outcome = await toolbox.call(raw("x" * 10_000, "{}"))
    assert len(outcome.text.encode()) <= 300
    outcome = await toolbox.call(make_call("c", "calculator", **{"k" * 5000: 1}))
    assert len(outcome.text.encode()) <= 300


@pytest.mark.parametrize("unit", ["x", "é", "日", "🐝"])
@pytest.mark.parametrize("limit", [256, 257, 258, 1001])
def test_capped_text_keeps_head_and_tail_and_whole_characters(unit: str, limit: int) -> None:
    text = "HEAD" + unit * 5000 + "TAIL"
    capped = cap(text, limit)
    assert len(capped.encode()) <= limit
    assert capped.startswith("HEAD")
    assert capped.endswith("TAIL")
    head, _, rest = capped.partition("\n[... ")
    missing, _, tail = rest.partition(" bytes left out ...]\n")
    assert len((head + tail).encode()) + int(missing) == len(text.encode())


def test_text_within_the_cap_is_left_alone() -> None:
    assert cap("abc\n", 256) == "abc\n"


async def test_a_tool_call_is_cancelled_with_its_caller() -> None:
    toolbox = worker_only("slow_tool:TOOL")
    task = asyncio.create_task(toolbox.call(make_call("c", "slow")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
