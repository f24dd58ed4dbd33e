"""What each dialect makes of a body and of an answer, and that nothing in a body breaks it."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from scripted_session import reply

from hermes_queue.agent.capture.calls import ModelCall, Refused
from hermes_queue.agent.capture.dialects import chat, conversation, messages, responses
from hermes_queue.agent.capture.dialects.base import Asked, BadCall, Dialect, Head, problem_of
from hermes_queue.agent.capture.dialects.body import read_object
from hermes_queue.models import FunctionCall, Message, ToolCall

DIALECTS = {each.name: each for each in (chat.DIALECT, responses.DIALECT, messages.DIALECT)}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"name": "bash", "description": "Run it.", "parameters": SCHEMA}
HEAD = Head("/v1/x", now_s=5)


def asked(dialect: Dialect, body: object, kept: Any = lambda name: None) -> Asked:
    """What a body asks for, from its bytes."""
    return dialect.read(read_object(json.dumps(body).encode()), HEAD, kept)


def call_of(name: str, body: object) -> ModelCall:
    return asked(DIALECTS[name], body).call


def said(text: str | None, reasoning: str | None = None, **calls: str) -> Message:
    """A reply; `calls` are ids and arguments of `bash`."""
    return Message(
        role="assistant",
        content=text,
        reasoning=reasoning,
        tool_calls=tuple(
            ToolCall(id=name, function=FunctionCall(name="bash", arguments=arguments))
            for name, arguments in calls.items()
        ),
    )


CALLS = {"c1": '{"command": "ls"}', "c2": '{"command": "pwd"}'}
CONVERSATION = (
    Message(role="system", content="Be brief.\n\nUse bash."),
    Message(role="user", content="List\nfiles."),
    said("Yes.", "Hmm.", **CALLS),
    Message(role="tool", content="a b", tool_call_id="c1"),
    Message(role="tool", content="/", tool_call_id="c2"),
    Message(role="user", content="Good."),
)
BODIES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "max_tokens": 100,
        "max_completion_tokens": 50,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {"type": "function", "function": BASH, "cache_control": {"type": "ephemeral"}},
            {"type": "web_search"},
        ],
        "tool_choice": "required",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Use bash."}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "List"}, {"type": "text", "text": "files."}],
            },
            {
                "role": "assistant",
                "content": "Yes.",
                "reasoning_content": "Hmm.",
                "refusal": None,
                "provider_specific_fields": {"refusal": None},
                "tool_calls": [
                    {
                        "id": name,
                        "type": "function",
                        "function": {"name": "bash", "arguments": arguments},
                    }
                    for name, arguments in CALLS.items()
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "a b"},
            {
                "role": "tool",
                "tool_call_id": "c2",
                "content": [{"type": "text", "text": "/"}],
            },
            {"role": "user", "content": "Good."},
        ],
    },
    "responses": {
        "model": "m",
        "max_output_tokens": 50,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "Be brief.",
        "tools": [{"type": "function", "strict": False, **BASH}, {"type": "web_search"}],
        "tool_choice": "required",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Use bash."}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "List"},
                    {"type": "input_text", "text": "files."},
                ],
            },
            {"type": "reasoning", "summary": [], "encrypted_content": "hq1:SG1tLg=="},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Yes."}],
            },
            *(
                {"type": "function_call", "call_id": name, "name": "bash", "arguments": arguments}
                for name, arguments in CALLS.items()
            ),
            {"type": "function_call_output", "call_id": "c1", "output": "a b"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "/"}],
            },
            {"type": "message", "role": "user", "content": "Good."},
        ],
    },
    "messages": {
        "model": "m",
        "max_tokens": 50,
        "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be brief.\n", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Use bash."},
        ],
        "tools": [
            {"name": "bash", "description": "Run it.", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "any"},
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "List"}, {"type": "text", "text": "files."}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hmm.", "signature": "unsigned"},
                    {"type": "text", "text": "Yes."},
                    {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
                    {"type": "tool_use", "id": "c2", "name": "bash", "input": {"command": "pwd"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "a b"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "content": [{"type": "text", "text": "/"}],
                        "cache_control": {"type": "ephemeral"},
                    },
                    {"type": "text", "text": "Good."},
                ],
            },
        ],
    },
}


@pytest.mark.parametrize("name", DIALECTS)
def test_one_conversation_reads_alike_in_every_dialect(name: str) -> None:
    call = call_of(name, BODIES[name])
    assert call.messages == CONVERSATION
    function = {**BASH, "strict": False} if name == "responses" else BASH
    assert call.tools == ({"type": "function", "function": function},)
    assert (call.dialect, call.path) == (name, "/v1/x")
    assert (call.requested_model, call.max_tokens, call.streamed) == ("m", 50, True)


@pytest.mark.parametrize("name", DIALECTS)
def test_what_is_left_out_of_a_call_is_an_event(name: str) -> None:
    found = {each["event"]: each["field"] for each in call_of(name, BODIES[name]).events}
    wanted = {"field_ignored": "tool_choice", "server_tool_removed": "tools"}
    billing = {"billing_header_removed": "system"} if name == "messages" else {}
    assert found == wanted | billing


def test_a_later_system_message_becomes_one_of_the_user_and_the_messages_before_it_stay() -> None:
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}
    for name in ("chat", "messages"):
        assert call_of(name, body).messages == (
            Message(role="user", content="a"),
            Message(role="user", content="<system_message>\nb\n</system_message>"),
        )


def test_a_response_continues_what_is_kept_but_not_its_instructions() -> None:
    kept = (Message(role="user", content="a"), said("b"))
    body = {"input": "c", "instructions": "new", "previous_response_id": "resp_0"}
    found = asked(responses.DIALECT, body, {"resp_0": kept}.get)
    system, user = Message(role="system", content="new"), Message(role="user", content="c")
    assert found.call.messages == (system, *kept, user)
    assert found.continued == (*kept, user)
    with pytest.raises(BadCall, match=r"previous_response_id.*send the whole conversation"):
        asked(responses.DIALECT, body)


def test_tools_come_back_by_the_names_and_with_the_texts_that_the_client_knows() -> None:
    tools = [
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
        {
            "type": "custom",
            "name": "patch",
            "format": {"type": "grammar", "definition": "start: X"},
        },
    ]
    found = asked(responses.DIALECT, {"input": "x", "tools": tools})
    names = [tool["function"]["name"] for tool in found.call.tools]
    assert names == ["files__read", "patch"]
    assert "start: X" in found.call.tools[1]["function"]["description"]
    calls = (("files__read", "{}"), ("patch", '{"input": "*** Begin"}'))
    message = Message(
        role="assistant",
        tool_calls=tuple(
            ToolCall(id=name, function=FunctionCall(name=name, arguments=arguments))
            for name, arguments in calls
        ),
    )
    answer = reply()
    output = responses.whole(found, type(answer)(0, message, "stop", answer.usage), "m")["output"]
    assert [(i["type"], i.get("namespace"), i["name"]) for i in output] == [
        ("function_call", "files", "read"),
        ("custom_tool_call", None, "patch"),
    ]
    assert output[1]["input"] == "*** Begin"
    again = call_of("responses", {"input": output, "tools": tools})
    assert again.messages == (message,)


REFUSED = [
    ("chat", {"messages": [{"role": "user", "content": "x"}], "n": 2}, "n: is 2"),
    ("chat", {"messages": []}, "the conversation is empty"),
    ("chat", {}, "messages: is a JSON null"),
    ("chat", {"messages": [{"role": "function"}]}, r"messages\[0\].role"),
    ("chat", {"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].tool_call_id"),
    (
        "chat",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        r"messages\[0\].content\[0\].type: 'image_url' is not offered: the model reads text alone",
    ),
    ("chat", {"messages": [{"role": "user"}], "max_tokens": 0}, "max_tokens: is 0"),
    ("chat", {"messages": [{"role": "user"}], "max_tokens": True}, "max_tokens: is a JSON boolean"),
    ("chat", {"messages": [{"role": "user"}], "stream": "yes"}, "stream: is a JSON text"),
    ("chat", {"messages": [{"role": "user"}], "functions": [1]}, "functions: .*send `tools`"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
    (
        "messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "a",
                            "content": [{"type": "image"}],
                        }
                    ],
                }
            ]
        },
        r"messages\[0\].content\[0\].content\[0\].type",
    ),
    ("responses", {"input": [{"type": "item_reference", "id": "a"}]}, r"input\[0\].type"),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input_im"),
    ("responses", {"input": "x", "background": True}, "background"),
    ("responses", {"input": "x", "conversation": "c"}, "send them as `input`"),
]


@pytest.mark.parametrize(("name", "body", "text"), REFUSED)
def test_what_is_not_offered_is_refused_by_field_and_fix(name: str, body: Any, text: str) -> None:
    with pytest.raises(BadCall, match=text):
        asked(DIALECTS[name], body)


HOSTILE = {
    "nested too deep": b"[" * 100_000,
    "more than 1,000,000 values": b"[" + b"0," * 1_000_001 + b"0]",
    "integer": b'{"messages": 123456789012345678901234567890}',
    "the number": b'{"messages": 1e999}',
    "NaN": b'{"messages": NaN}',
    "not JSON in UTF-8": b'{"a": "\xff"}',
    "JSON list": b"[]",
    "not JSON": b"",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_bodies_made_to_break_a_reader_are_refused(text: str) -> None:
    with pytest.raises(BadCall, match=text):
        chat.read(read_object(HOSTILE[text]), HEAD, lambda name: None)


def test_half_characters_and_nul_in_texts_are_kept_as_far_as_utf8_can() -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud800a\\u0000\\ud83d\\ude00"}]}'
    call = chat.read(read_object(body), HEAD, lambda name: None).call
    assert call.messages[0].content == "?a\0\N{GRINNING FACE}"


def test_schemas_that_no_server_could_take_are_refused() -> None:
    deep: Any = {}
    for _ in range(70):
        deep = {"a": deep}
    for schema, text in ((deep, "nested deeper"), ({"\ud800": 1}, "surrogate")):
        body = {
            "messages": [{"role": "user"}],
            "tools": [{"type": "function", "function": {"name": "a", "parameters": schema}}],
        }
        with pytest.raises(BadCall, match=rf"tools\[0\].function.parameters.*{text}"):
            asked(chat.DIALECT, body)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("parameters", {"enum": [0] * 20_000}, "too many values"),
        ("parameters", {"enum": ["x" * 600_000]}, "600,014 characters"),
        ("description", "x" * 600_000, "600,000 characters"),
    ],
)
def test_a_tool_that_takes_long_to_write_is_refused(
    name: str, field: str, value: Any, text: str
) -> None:
    if name == "messages" and field == "parameters":
        field = "input_schema"
    tool: Any = {"name": "a", field: value}
    if name == "chat":
        tool = {"function": tool}
    said = {"input": "x"} if name == "responses" else {"messages": [{"role": "user"}]}
    with pytest.raises(BadCall, match=rf"^tools\[0\].*(parameters|description).*{text}"):
        asked(DIALECTS[name], {**said, "tools": [tool]})


STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**63, "", "x", "\ud800", "text", [], {}, [None], [[]]),
    *([{}], {"type": []}, {"type": "text", "text": 5}, ["text"], {"a": {"b": [1]}}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a body."""
    inside: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inside = enumerate(value)
    below = [place for key, each in inside for place in places(each, (*path, key))]
    return [path, *below] if path else below


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", DIALECTS)
def test_a_strange_value_anywhere_in_a_body_is_read_or_refused(name: str) -> None:
    dialect, body = DIALECTS[name], BODIES[name]
    chance = random.Random(name)
    more = {key: None for key in ("n", "modalities", "functions", "plugins", "mcp_servers")}
    body = {**body, **more, "previous_response_id": None, "text": {"format": None}, "prompt": None}
    refused = 0
    for path in places(body):
        for value in chance.sample(STRANGE, 7):
            try:
                found = dialect.read(put(body, path, value), HEAD, lambda name: None)
            except BadCall as error:
                refused += 1
                str(error).encode()
            else:
                json.dumps([each.model_dump() for each in found.call.messages]).encode()
                json.dumps([found.call.tools, found.call.events], ensure_ascii=False).encode()
    assert refused > 50


# --- answers and refusals ---------------------------------------------------------------


def test_the_context_s_length_is_refused_in_each_dialect_s_words() -> None:
    text = (
        "HTTP 400: This model's maximum context length is 8192 tokens. However, you requested "
        "9100 tokens (8500 in the messages, 600 in the completion)."
    )
    refused = Refused("context_length", text)
    found = {name: problem_of(refused, each, 401) for name, each in DIALECTS.items()}
    assert {each.status for each in found.values()} == {400}
    assert found["chat"].code == found["responses"].code == "context_length_exceeded"
    assert found["messages"].message == "prompt is too long: 9100 tokens > 8192 maximum"
    assert chat.problem(found["chat"])["error"]["code"] == "context_length_exceeded"
    plain = messages.too_long(
        "The input (9000 tokens) is longer than the model's context length (4096 tokens)."
    )
    assert plain == "prompt is too long: 9000 tokens > 4096 maximum"
    assert messages.too_long("no room").startswith("prompt is too long: no room")


@pytest.mark.parametrize(("kind", "status"), [("stopped", 403), ("closed", 403), ("upstream", 503)])
def test_a_trajectory_that_is_over_is_refused_as_the_program_ends_on_it(
    kind: Any, status: int
) -> None:
    found = problem_of(Refused(kind, "trajectory stopped: max_turns"), chat.DIALECT, 403)
    assert (found.status, found.message) == (status, "trajectory stopped: max_turns")


def test_arguments_that_are_no_object_reach_a_client_that_expects_one_and_come_back() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    deep = 200 * '{"a":' + "1" + 200 * "}"
    for text in (
        "{oops",
        "[1]",
        '"x"',
        '{"a": NaN}',
        '{"a": 1e999}',
        f'{{"a": 1{"0" * 99}}}',
        deep,
    ):
        asking = asked(messages.DIALECT, body)
        block = messages.whole(asking, reply(None, arguments=text), "m")["content"][0]
        assert block["input"] == {"invalid_arguments": text}
        back = {"messages": [{"role": "assistant", "content": [block]}]}
        assert call_of("messages", back).messages[0].tool_calls[0].function.arguments == text


def test_a_reply_that_was_cut_off_says_so_in_each_dialect() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    cut = reply("x", finish="length")
    assert (
        chat.whole(asked(chat.DIALECT, body), cut, "m")["choices"][0]["finish_reason"] == "length"
    )
    assert messages.whole(asked(messages.DIALECT, body), cut, "m")["stop_reason"] == "max_tokens"
    asking = asked(responses.DIALECT, {"input": "x"})
    assert responses.whole(asking, cut, "m")["incomplete_details"] == {
        "reason": "max_output_tokens"
    }
    assert b'"type":"response.completed"' in [*responses.stream(asking, cut, "m")][-1]


def test_thinking_is_shown_only_to_clients_that_ask_for_it() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    thought = reply("x", reasoning="hmm")
    kinds = [
        [
            block["type"]
            for block in messages.whole(asked(messages.DIALECT, each), thought, "m")["content"]
        ]
        for each in (body, {**body, "thinking": {"type": "adaptive"}})
    ]
    assert kinds == [["text"], ["thinking", "text"]]


def test_messages_and_calls_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MESSAGES_MAX", 5)
    made = {"id": "c", "function": {"name": "f"}}
    replies = [{"role": "assistant", "tool_calls": [made, made]} for _ in range(2)]
    call_of("chat", {"messages": [{"role": "user", "content": "a"}, *replies[:1]]})
    with pytest.raises(BadCall, match="more than 5 messages and calls"):
        call_of("chat", {"messages": replies})
