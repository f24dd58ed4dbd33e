"""A reply that a program sends back, changed as such programs change it, still means the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from hermes_queue.agent.capture.calls import Answer
from hermes_queue.agent.capture.dialects import chat, messages, responses
from hermes_queue.agent.capture.dialects.base import Asked, Dialect, Head
from hermes_queue.models import FunctionCall, Message, ToolCall, Usage

COUNT = 60
TEXTS = (
    *(
        "",
        "x",
        "naïve \u2028 \N{GRINNING FACE}\0",
        "a\n\ndata: {}\r\n",
        5000 * "long ",
        "<tool_call>",
    ),
)
ARGUMENTS = (
    *('{"command": "ls"}', "{}", '{"a":1.0,"b":[null,{"c":"\\u00e9"}]}', '{"b": 2, "a": 1}'),
    *('{"a": "\\ud800"}', '{"a": 99999999999999999999}'),
    *("{oops", "[1]", '{"x": "' + 5000 * "y" + '"}', "null", '{"command": "ls"', '{"a": NaN}'),
)


def replies(seed: int) -> Iterable[Message]:
    """Replies of a model, some of them odd."""
    chance = random.Random(seed)
    for _ in range(COUNT):
        calls = tuple(
            ToolCall(
                id=f"call_{index}",
                function=FunctionCall(name="bash", arguments=chance.choice(ARGUMENTS)),
            )
            for index in range(chance.choice((0, 1, 1, 3)))
        )
        yield Message(
            role="assistant",
            content=chance.choice(TEXTS) or (None if calls or chance.random() < 0.5 else ""),
            reasoning=chance.choice((None, "hmm", "two\nlines \u00e9")),
            tool_calls=calls,
        )


def meaning(message: Message) -> Any:
    """What a reply says, without how it is written and without reasoning."""
    calls = [(call.id, call.function.name, parsed(call)) for call in message.tool_calls]
    return message.role, message.content or "", calls


def parsed(call: ToolCall) -> Any:
    try:
        return json.loads(call.function.arguments)
    except ValueError:
        return call.function.arguments


def events(stream: Iterable[bytes]) -> list[Any]:
    """The data of a stream of events, as clients cut it."""
    lines = b"".join(stream).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


# --- what clients make of an answer -----------------------------------------------------


def chat_whole(body: Any) -> Any:
    return body["choices"][0]["message"]


def chat_streamed(chunks: list[Any]) -> Any:
    told: dict[str, Any] = {"role": "assistant"}
    calls: dict[int, Any] = {}
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        for name in ("content", "reasoning_content"):
            if delta.get(name) is not None:
                told[name] = told.get(name, "") + delta[name]
        for part in delta.get("tool_calls", ()):
            call = calls.setdefault(part["index"], {"function": {"arguments": ""}})
            call["function"]["arguments"] += part["function"].pop("arguments")
            call["function"] |= part.pop("function")
            call |= part
    return told | ({"tool_calls": list(calls.values())} if calls else {})


def messages_streamed(found: list[Any]) -> Any:
    blocks: list[Any] = []
    for each in found:
        if each["type"] == "content_block_start":
            blocks.append({**each["content_block"], "json": ""})
        elif each["type"] == "content_block_delta":
            delta, block = each["delta"], blocks[-1]
            name = {"partial_json": "json"}
            for field in ("text", "thinking", "partial_json", "signature"):
                if field in delta:
                    block[name.get(field, field)] += delta[field]
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return blocks


# --- how programs send it back ----------------------------------------------------------


def mini(message: Any) -> Any:
    """mini-swe-agent: a field of its library more, and no content where there is none."""
    message = {**message, "provider_specific_fields": {"refusal": None}}
    if message.get("content") is None:
        message.pop("content", None)
    message.pop("reasoning_content", None)
    return message


def hermes(message: Any) -> Any:
    """hermes-agent: arguments written anew, "" for no content, no reasoning."""
    message = {**message, "content": message.get("content") or ""}
    message.pop("reasoning_content", None)
    for call in message.get("tool_calls", ()):
        try:
            told = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        call["function"]["arguments"] = json.dumps(told, separators=(",", ":"))
    return message


def claude_code(blocks: Any) -> Any:
    """Claude Code: marks for the cache, inputs written anew by another language."""
    marked = [{**block, "cache_control": {"type": "ephemeral"}} for block in blocks]
    return json.loads(json.dumps(marked, sort_keys=True).replace("1.0", "1"))


def codex(items: Any) -> Any:
    """Codex: no ids and no states of items, and no reasoning but the sealed one."""
    kept = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in items]
    for item in kept:
        if item["type"] == "reasoning":
            del item["content"]
    return kept


def as_it_is(told: Any) -> Any:
    return told


Row = tuple[Dialect, str, Callable[[Any], Any]]
ROWS: dict[str, Row] = {
    "mini-swe-agent": (chat.DIALECT, "whole", mini),
    "hermes-agent": (chat.DIALECT, "stream", hermes),
    "an SDK of Chat": (chat.DIALECT, "stream", as_it_is),
    "Claude Code": (messages.DIALECT, "stream", claude_code),
    "an SDK of Messages": (messages.DIALECT, "whole", as_it_is),
    "Codex": (responses.DIALECT, "stream", codex),
    "an SDK of Responses": (responses.DIALECT, "whole", as_it_is),
}
"""Who sends it back: its dialect, how it is answered, what it changes."""


def ask(dialect: Dialect, told: Any = None) -> Asked:
    """A first call, or one that sends back what was told."""
    body: dict[str, Any]
    if dialect.name == "responses":
        more = told or []
        body = {
            "input": [{"role": "user", "content": "x"}, *more],
            "include": ["reasoning.encrypted_content"],
        }
    else:
        if dialect.name == "messages":
            told = told and {"role": "assistant", "content": told}
        body = {"messages": [{"role": "user", "content": "x"}, *([told] if told else [])]}
        body["thinking"] = {"type": "enabled"}
    return dialect.read(body, Head("/"), lambda name: None)


def told_by(dialect: Dialect, form: str, answer: Answer) -> Any:
    """The reply as a client holds it."""
    if form == "whole":
        body = json.loads(json.dumps(dialect.whole(ask(dialect), answer, "m")))
        key = {"chat": chat_whole, "messages": lambda b: b["content"]}
        return key.get(dialect.name, lambda b: b["output"])(body)
    found = events(dialect.stream(ask(dialect), answer, "m"))
    if dialect.name == "responses":
        return [each["item"] for each in found if each["type"] == "response.output_item.done"]
    return {"chat": chat_streamed, "messages": messages_streamed}[dialect.name](found)


@pytest.mark.parametrize("row", ROWS)
def test_a_reply_means_the_same_when_it_comes_back(row: str) -> None:
    dialect, form, change = ROWS[row]
    for turn, message in enumerate(replies(seed=len(row))):
        answer = Answer(turn, message, "stop", Usage())
        _, *found = ask(dialect, change(told_by(dialect, form, answer))).call.messages
        assert [meaning(each) for each in found] == [meaning(message)]
        if change not in (mini, hermes):
            assert (found[0].reasoning or None) == message.reasoning
