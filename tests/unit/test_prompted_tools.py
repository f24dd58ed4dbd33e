"""Tools as text: what goes over the wire, and how replies come back as calls."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from chat_endpoint import ChatEndpoint, completion

from hermes_queue.agent import AgentScript, Reply, make_chat
from hermes_queue.agent.endpoint import dialect
from hermes_queue.agent.endpoint.dialect import PREAMBLE, ToolDialect
from hermes_queue.agent.loop import run_agent
from hermes_queue.agent.parameters import OpenAIParams, read_params
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, Limits, Message, ToolCall
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import Toolbox, ToolContext, load_tool, make_call

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

TOOLS = [load_tool("calculator").schema(), load_tool("submit").schema()]
PROMPT = [Message(role="system", content="Be brief."), Message(role="user", content="1+1?")]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression":"1+1"}}\n</tool_call>'
PROMPTED = {"tools": "prompted", "probe_tools": False}
NATIVE = {"probe_tools": False}


async def no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("a model must not see the gold answer")


def chat(endpoint: ChatEndpoint, params: dict[str, Any]) -> Any:
    spec = AgentSpec(kind="openai", model="m", base_url=endpoint.url, params=params)
    return make_chat(
        spec, AgentScript(oracle=no_gold), ModelSettings(max_retries=0, trusted_urls=endpoint.url)
    )


async def ask(client: Any, messages: list[Message]) -> Reply:
    reply: Reply = await client.complete(messages, TOOLS, {}, deadline=time.monotonic() + 120)
    return reply


@pytest.fixture
async def endpoint() -> AsyncIterator[ChatEndpoint]:
    async with ChatEndpoint(lambda path, body: completion()) as server:
        yield server


def say(endpoint: ChatEndpoint, content: str, **more: Any) -> None:
    endpoint.handler = lambda path, body: completion(content, **more)


def results(*texts: str, first: int = 0) -> list[Message]:
    return [
        Message(role="tool", content=text, tool_call_id=f"call_0_{first + i}")
        for i, text in enumerate(texts)
    ]


# --- what is sent -----------------------------------------------------------------------


async def test_the_tools_stand_in_the_system_message_and_nowhere_else(
    endpoint: ChatEndpoint,
) -> None:
    await ask(chat(endpoint, PROMPTED), PROMPT)
    (body,) = endpoint.bodies()
    assert "tools" not in body
    system, user = body["messages"]
    assert system["content"].startswith("Be brief.\n\n# Tools\n")
    listed = system["content"].partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in listed.splitlines()] == TOOLS
    assert user == {"role": "user", "content": "1+1?"}


async def test_a_conversation_without_system_message_gets_one(endpoint: ChatEndpoint) -> None:
    await ask(chat(endpoint, PROMPTED), PROMPT[1:])
    assert [m["role"] for m in endpoint.bodies()[0]["messages"]] == ["system", "user"]


async def test_a_reply_goes_back_word_for_word_and_its_results_as_one_user_message(
    endpoint: ChatEndpoint,
) -> None:
    text = f"<think>\neasy\n</think>\n\nI add.\n{CALL}\n{CALL}"
    say(endpoint, text)
    client = chat(endpoint, PROMPTED)
    reply = await ask(client, PROMPT)
    await ask(client, [*PROMPT, reply.message, *results("2", "two")])
    assert endpoint.bodies()[1]["messages"][2:] == [
        {"role": "assistant", "content": text},
        {
            "role": "user",
            "content": "<tool_response>\n2\n</tool_response>\n"
            "<tool_response>\ntwo\n</tool_response>",
        },
    ]


def test_a_reply_that_a_program_changed_is_shown_as_it_was_changed() -> None:
    spoken = ToolDialect(prompted=True)
    said = Message(role="assistant", content=CALL)
    reply, _ = spoken.incoming(said, TOOLS, turn=0, finish_reason="stop")
    function = reply.tool_calls[0].function

    def sent(content: str | None, arguments: str) -> str | None:
        changed = function.model_copy(update={"arguments": arguments})
        call = reply.tool_calls[0].model_copy(update={"function": changed})
        message = reply.model_copy(update={"content": content, "tool_calls": (call,)})
        return spoken.outgoing([*PROMPT, message], TOOLS)[-1].content

    assert sent("", '{"expression": "1+1"}') == CALL  # the same in another way
    assert "2+2" in (sent(None, '{"expression": "2+2"}') or "")
    assert (sent("Or so.", function.arguments) or "").startswith("Or so.")


async def test_calls_of_another_agent_are_written_in_the_same_form(endpoint: ChatEndpoint) -> None:
    other = Message(
        role="assistant",
        content="I add.",
        tool_calls=(make_call("x", "calculator", expression="1+1"), make_call("y", "submit")),
    )
    await ask(chat(endpoint, PROMPTED), [*PROMPT, other, *results("2", "ok")])
    assert endpoint.bodies()[0]["messages"][2] == {
        "role": "assistant",
        "content": "I add.\n<tool_call>\n"
        '{"name": "calculator", "arguments": {"expression": "1+1"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>',
    }


async def test_without_tools_nothing_is_added(endpoint: ChatEndpoint) -> None:
    client = chat(endpoint, PROMPTED)
    await client.complete(PROMPT, [], {}, deadline=time.monotonic() + 120)
    assert endpoint.bodies()[0]["messages"][0]["content"] == "Be brief."


# --- what comes back --------------------------------------------------------------------


@pytest.mark.parametrize("params", [PROMPTED, NATIVE | {"parser": "hermes"}])
async def test_calls_in_the_text_become_calls(
    endpoint: ChatEndpoint, params: dict[str, Any]
) -> None:
    say(endpoint, f"<think>easy</think>I add.\n{CALL}")
    message = (await ask(chat(endpoint, params), PROMPT)).message
    ((name, arguments),) = [(c.function.name, c.function.arguments) for c in message.tool_calls]
    assert (name, arguments) == ("calculator", '{"expression":"1+1"}')
    assert (message.content, message.reasoning) == ("I add.", "easy")
    assert message.tool_calls[0].id == "call_0_0"


async def test_in_native_mode_the_tools_are_sent_and_the_history_stays_native(
    endpoint: ChatEndpoint,
) -> None:
    say(endpoint, CALL)
    client = chat(endpoint, NATIVE | {"parser": "hermes"})
    reply = await ask(client, PROMPT)
    await ask(client, [*PROMPT, reply.message, *results("2")])
    body = endpoint.bodies()[1]
    assert body["tools"] == TOOLS
    assert body["messages"][2]["tool_calls"][0]["function"]["name"] == "calculator"
    assert body["messages"][3] == {"role": "tool", "content": "2", "tool_call_id": "call_0_0"}


async def test_text_is_left_alone_when_no_parser_is_named(endpoint: ChatEndpoint) -> None:
    say(endpoint, CALL)
    reply = await ask(chat(endpoint, NATIVE), PROMPT)
    assert (reply.message.content, reply.message.tool_calls) == (CALL, ())


async def test_an_unparsed_call_leaves_an_event(
    endpoint: ChatEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    dialect._warn_of_unparsed.cache_clear()
    say(endpoint, CALL)
    for _ in range(2):
        reply = await ask(chat(endpoint, NATIVE), PROMPT)
        assert reply.events == ({"event": "tool_call_unparsed", "mark": "<tool_call>"},)
    assert [r.getMessage() for r in caplog.records if "parser=NAME" in r.getMessage()] != []
    assert len([r for r in caplog.records if r.name == dialect.__name__]) == 1


async def test_calls_that_the_server_parsed_are_kept(endpoint: ChatEndpoint) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    say(endpoint, CALL, message={"tool_calls": [call]})
    message = (await ask(chat(endpoint, NATIVE | {"parser": "hermes"}), PROMPT)).message
    assert (message.content, [c.id for c in message.tool_calls]) == (CALL, ["a"])


async def test_an_unreadable_call_stays_a_call_with_an_event(endpoint: ChatEndpoint) -> None:
    body = '{"name": "calculator", "arguments": {"expression": "1+1"}}}'
    say(endpoint, f"<tool_call>{body}</tool_call>")
    reply = await ask(chat(endpoint, PROMPTED), PROMPT)
    assert reply.message.tool_calls[0].function.arguments == body
    assert reply.events == (
        {
            "event": "tool_call_unreadable",
            "call": "call_0_0",
            "status": "invalid_json",
            "raw": body,
        },
    )


async def test_a_call_cut_off_by_the_token_limit_is_text(endpoint: ChatEndpoint) -> None:
    say(endpoint, f"I add.\n{CALL[:40]}", finish_reason="length")
    message = (await ask(chat(endpoint, PROMPTED), PROMPT)).message
    assert message.tool_calls == ()
    assert (message.content or "").startswith("I add.\n<tool_call>")


# --- with the loop ----------------------------------------------------------------------


async def test_the_loop_runs_prompted_calls_and_refuses_unreadable_ones(
    endpoint: ChatEndpoint,
) -> None:
    replies = [CALL, CALL.replace("}}", "}"), '<tool_call>{"name": "submit"}</tool_call>']

    def handler(path: str, body: dict[str, Any]) -> Any:
        return completion(replies[len(endpoint.bodies()) - 1])

    endpoint.handler = handler
    slot = Slot("s", "t", "b", "/workspace", SlotSpec())
    context = SlotContext(cast(Any, None), slot, deadline=time.monotonic() + 60)
    toolbox = Toolbox(("calculator", "submit"), ToolContext(context, 10.0, 4096))
    result = await run_agent(
        chat(endpoint, PROMPTED),
        toolbox,
        PROMPT,
        limits=Limits(),
        sampling={},
        deadline=time.monotonic() + 120,
    )
    assert result.stop_reason == "submitted"
    assert (result.attempted, result.schema_valid, result.ok) == (3, 2, 2)
    observations = [m.content or "" for m in result.messages if m.role == "tool"]
    assert observations[0] == "2"
    assert "not valid JSON" in observations[1]
    sent = endpoint.bodies()[2]["messages"]
    assert [m["role"] for m in sent] == ["system", "user", *["assistant", "user"] * 2]
    assert sent[4]["content"] == replies[1]


# --- params -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tools": "maybe"}, "tools: .*native.*prompted"),
        ({"parser": "hermess"}, "unknown; known: .*hermes"),
        ({"parser": 7}, "parser: .*valid string, not 7"),
    ],
)
async def test_wrong_params_are_refused(
    endpoint: ChatEndpoint, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        chat(endpoint, params)


def test_the_preamble_shows_the_form_that_the_parser_reads() -> None:
    example = PREAMBLE.format(tools="").partition("these tags:\n")[2]
    message, events = ToolDialect(prompted=True).incoming(
        Message(role="assistant", content=example), TOOLS, turn=0, finish_reason="stop"
    )
    assert events == []
    assert message.tool_calls[0].function.arguments == '{"ARGUMENT": "VALUE"}'


def test_a_parameter_that_is_none_is_not_given() -> None:
    given = {"mode": None, "token_ids": None, "tools": "prompted"}
    assert read_params(OpenAIParams, given) == OpenAIParams(tools="prompted")
