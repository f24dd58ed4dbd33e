"""Anthropic's Messages: `POST /v1/messages`, and what `count_tokens` counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_queue.agent.capture.calls import Answer, ModelCall
from hermes_queue.agent.capture.dialects.base import (
    Asked,
    BadCall,
    Dialect,
    Head,
    Previous,
    Problem,
    compact_json,
    event,
    finish_reason,
    pieces,
)
from hermes_queue.agent.capture.dialects.body import (
    flag,
    name_of,
    not_text,
    objects,
    optional_count,
    optional_name,
    optional_string,
    text_of,
)
from hermes_queue.agent.capture.dialects.conversation import (
    MESSAGES_MAX,
    TOOLS_MAX,
    Conversation,
    Events,
    arguments_object,
    arguments_text,
    function_tool,
    tool_call,
)
from hermes_queue.models import Message, ToolCall, Usage

BILLING = "x-anthropic-billing-header:"
"""Begins a line that Claude Code puts into its system prompt, another one with each call. No two
prompts of a trajectory would begin alike."""
_BILLING_LINE = re.compile(rf"^{BILLING}.*\n?", re.MULTILINE)
SIGNATURE = "unsigned"
"""Of thinking: clients send it back, and nobody checks it."""
_IGNORED: dict[str, tuple[Any, ...]] = {
    "tool_choice": ({"type": "auto"},),
    "stop_sequences": ([],),
    "output_format": (),
}
_STOP_REASON = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERROR_TYPE = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_LIMIT = re.compile(r"(?:context (?:length|window|size)|maximum)\D{0,40}?(\d{2,9})")
_COUNT = re.compile(r"(?<![\d.])\d{2,9}(?![\d.]*\d)")


def read(body: Mapping[str, Any], head: Head, previous: Previous) -> Asked:
    """What a body asks for."""
    events = Events()
    events.ignored(body, _IGNORED)
    events.removed(body, ("mcp_servers", "container"))
    conversation = Conversation()
    instructions = _without_billing(text_of(body.get("system"), "system"), events)
    for place, message in objects(body.get("messages"), "messages", MESSAGES_MAX):
        _add(conversation, place, message, events)
    thinking = body.get("thinking")
    call = ModelCall(
        dialect="messages",
        path=head.path,
        messages=conversation.folded(instructions),
        tools=_tools(body, events),
        requested_model=optional_name(body, "model"),
        max_tokens=optional_count(body, "max_tokens"),
        streamed=flag(body, "stream"),
        retry_count=head.retry_count,
        hints=head.hints,
        events=events.made(),
    )
    wants_thinking = isinstance(thinking, dict) and thinking.get("type") != "disabled"
    return Asked(call, now_s=head.now_s, reasoning=wants_thinking)


def _without_billing(text: str, events: Events) -> str:
    kept, removed = _BILLING_LINE.subn("", text)
    if not removed:
        return text
    events.add("billing_header_removed", "system", BILLING)
    return kept.lstrip("\n")


def _add(
    conversation: Conversation, place: str, message: Mapping[str, Any], events: Events
) -> None:
    role, content, where = message.get("role"), message.get("content"), f"{place}.content"
    if role == "system":
        conversation.system(_without_billing(text_of(content, where), events))
    elif role not in ("user", "assistant"):
        raise BadCall(f"{place}.role", "is not known: send user or assistant")
    elif not isinstance(content, list):
        text = text_of(content, where)
        conversation.user(text) if role == "user" else conversation.assistant(text, "", ())
    elif role == "user":
        _add_user(conversation, where, content)
    else:
        _add_assistant(conversation, where, content)


def _add_user(conversation: Conversation, where: str, blocks: list[Any]) -> None:
    """Each result is a message of its own; texts before, between and after them stay there."""
    texts: list[str] = []
    for place, block in objects(blocks, where, MESSAGES_MAX):
        if block.get("type") == "tool_result":
            if texts:
                conversation.user("\n".join(texts))
                texts = []
            call_id = name_of(block.get("tool_use_id"), f"{place}.tool_use_id")
            conversation.result(call_id, text_of(block.get("content"), f"{place}.content"))
        elif block.get("type", "text") == "text":
            texts.append(optional_string(block.get("text"), f"{place}.text"))
        else:
            raise not_text(place, block)
    if texts or not blocks:
        conversation.user("\n".join(texts))


def _add_assistant(conversation: Conversation, where: str, blocks: list[Any]) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for place, block in objects(blocks, where, MESSAGES_MAX):
        kind = block.get("type", "text")
        if kind == "text":
            texts.append(optional_string(block.get("text"), f"{place}.text"))
        elif kind == "thinking":
            thoughts.append(optional_string(block.get("thinking"), f"{place}.thinking"))
        elif kind == "tool_use":
            arguments = arguments_text(block.get("input"), f"{place}.input")
            calls.append(tool_call(place, block.get("id"), block.get("name"), arguments))
        elif kind != "redacted_thinking":
            raise not_text(place, block)
    conversation.assistant("".join(texts), "".join(thoughts), calls)


def _tools(body: Mapping[str, Any], events: Events) -> tuple[Mapping[str, Any], ...]:
    if body.get("tools") is None:
        return ()
    found = []
    for place, tool in objects(body["tools"], "tools", TOOLS_MAX):
        if tool.get("type") in (None, "custom"):
            found.append(function_tool(place, tool, tool.get("input_schema")))
        else:
            events.add("server_tool_removed", "tools", tool["type"])
    return tuple(found)


# --- the answer -------------------------------------------------------------------------


def whole(asked: Asked, answer: Answer, model: str) -> dict[str, Any]:
    """The answer as a `message`."""
    return {
        **_head(asked, answer, model),
        "content": _blocks(answer.message, asked),
        "stop_reason": _STOP_REASON[finish_reason(answer)],
        "usage": {**_input_usage(answer.usage), "output_tokens": answer.usage.completion_tokens},
    }


def _head(asked: Asked, answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.turn}",
        "type": "message",
        "role": "assistant",
        "model": asked.model(model),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _input_usage(usage: Usage) -> dict[str, Any]:
    """This API counts the tokens of the cache beside those of the input, not among them."""
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }


def _blocks(message: Message, asked: Asked) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if message.reasoning and asked.reasoning:
        thinking = {"thinking": message.reasoning, "signature": SIGNATURE}
        blocks.append({"type": "thinking", **thinking})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content or ""})
    for call in message.tool_calls:
        name, given = call.function.name, arguments_object(call.function.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": given})
    return blocks


def stream(asked: Asked, answer: Answer, model: str) -> Iterator[bytes]:
    """The answer as events from `message_start` to `message_stop`."""
    usage = {**_input_usage(answer.usage), "output_tokens": 0}
    yield _event("message_start", message={**_head(asked, answer, model), "usage": usage})
    for index, block in enumerate(_blocks(answer.message, asked)):
        empty, deltas = _opened(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": _STOP_REASON[finish_reason(answer)], "stop_sequence": None}
    counted = {"output_tokens": answer.usage.completion_tokens}
    yield _event("message_delta", delta=end, usage=counted)
    yield _event("message_stop")


def _opened(block: Mapping[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """A block as it begins, and what makes it whole."""
    kind = block["type"]
    if kind == "tool_use":
        text = compact_json(block["input"]).decode()
        deltas = ({"type": "input_json_delta", "partial_json": each} for each in pieces(text))
        return {**block, "input": {}}, deltas
    if kind == "text":
        return {**block, "text": ""}, (
            {"type": "text_delta", "text": each} for each in pieces(block["text"])
        )
    return {**block, "thinking": "", "signature": ""}, _thoughts(block)


def _thoughts(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in pieces(block["thinking"]):
        yield {"type": "thinking_delta", "thinking": piece}
    yield {"type": "signature_delta", "signature": block["signature"]}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def problem(found: Problem) -> dict[str, Any]:
    """An error as Anthropic's API gives it."""
    kind = _ERROR_TYPE.get(found.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": found.message}}


def too_long(message: str) -> str:
    """The words by which agents of this API know that they have to compact.

    Servers word it differently; the numbers are taken from what this one said.
    """
    if message.startswith("prompt is too long"):
        return message
    counts = [int(count) for count in _COUNT.findall(message[:2000])]
    limit = _LIMIT.search(message[:2000])
    if limit is None:
        return f"prompt is too long: {message}"
    most = int(limit[1])
    asked = max(counts, default=0)
    return f"prompt is too long: {max(asked, most + 1)} tokens > {most} maximum"


DIALECT = Dialect(
    name="messages",
    read=read,
    whole=whole,
    stream=stream,
    problem=problem,
    waiting=_event("ping"),
    too_long=too_long,
)
