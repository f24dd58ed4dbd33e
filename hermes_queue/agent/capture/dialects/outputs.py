"""OpenAI's Responses: what is answered."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_queue.agent.capture.calls import Answer
from hermes_queue.agent.capture.dialects.base import Asked, event, finish_reason, pieces
from hermes_queue.agent.capture.dialects.conversation import arguments_object
from hermes_queue.models import Message, ToolCall, Usage

SEAL = "hq1:"
"""Begins `encrypted_content`. It is the reasoning in base64: clients send this field back, and
not the text itself."""


def response_id(turn: int) -> str:
    """Id of the answer that was recorded as this turn."""
    return f"resp_{turn}"


def whole(asked: Asked, answer: Answer, model: str) -> dict[str, Any]:
    """The answer as a `response`."""
    cut = finish_reason(answer) == "length"
    return {
        **_head(asked, response_id(answer.turn), model),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(answer.message, asked, answer.turn),
        "usage": _usage(answer.usage),
    }


def _head(asked: Asked, name: str, model: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "response",
        "created_at": asked.now_s,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model(model),
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _items(message: Message, asked: Asked, turn: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if message.reasoning:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        item = {"id": f"rs_{turn}", "type": "reasoning", "summary": [], "content": content}
        if asked.sealed_reasoning:
            sealed = base64.b64encode(message.reasoning.encode(errors="replace"))
            item["encrypted_content"] = SEAL + sealed.decode()
        items.append(item)
    if message.content or not message.tool_calls:
        part = {"type": "output_text", "text": message.content or "", "annotations": []}
        items.append(
            {
                "id": f"msg_{turn}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    items += [_call(call, asked, f"{turn}_{i}") for i, call in enumerate(message.tool_calls)]
    return items


def _call(call: ToolCall, asked: Asked, number: str) -> dict[str, Any]:
    name, arguments = call.function.name, call.function.arguments
    space, known = asked.namespaces.get(name, ("", name))
    item: dict[str, Any] = {"call_id": call.id, "name": known, "status": "completed"}
    if space:
        item["namespace"] = space
    if name not in asked.free_form:
        return {"id": f"fc_{number}", "type": "function_call", **item, "arguments": arguments}
    given = arguments_object(arguments).get("input")
    text = given if isinstance(given, str) else arguments
    return {"id": f"ctc_{number}", "type": "custom_tool_call", **item, "input": text}


# --- the stream -------------------------------------------------------------------------


def stream(asked: Asked, answer: Answer, model: str) -> Iterator[bytes]:
    """The answer as events from `response.created` to `response.completed`.

    A reply that was cut off ends with `response.completed`, too: clients take any other end for a
    failure and ask again. Its `status` says what it is.
    """
    begun = _head(asked, response_id(answer.turn), model)
    done = whole(asked, answer, model)
    yield from _numbered(
        (
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            *_output_events(done["output"]),
            {"type": "response.completed", "response": done},
        )
    )


def too_long_in_stream(asked: Asked, message: str, model: str) -> Iterator[bytes]:
    """The refusal for the context's length where clients look for it: in the stream."""
    failed = _head(asked, "resp_refused", model)
    error = {"code": "context_length_exceeded", "message": message}
    ended = {**failed, "status": "failed", "error": error}
    yield from _numbered(
        (
            {"type": "response.created", "response": failed},
            {"type": "response.failed", "response": ended},
        )
    )


def _numbered(events: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    for number, each in enumerate(events):
        yield event({**each, "sequence_number": number}, each["type"])


def _output_events(items: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for index, item in enumerate(items):
        at = {"output_index": index}
        inside = {**at, "item_id": item["id"]}
        yield {"type": "response.output_item.added", **at, "item": _opened(item)}
        if item["type"] in _FIELDS:
            yield from _call_events(item, inside)
        else:
            yield from _text_events(item, inside)
        yield {"type": "response.output_item.done", **at, "item": item}


_FIELDS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""Of calls: the field with what is called for, and how the events that fill it begin."""


def _opened(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it begins."""
    if item["type"] in _FIELDS:
        return {**item, "status": "in_progress", _FIELDS[item["type"]][0]: ""}
    if item["type"] == "message":
        return {**item, "status": "in_progress", "content": []}
    return {**item, "content": []}


def _call_events(item: Mapping[str, Any], inside: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    field, kind = _FIELDS[item["type"]]
    for piece in pieces(item[field]):
        yield {"type": f"{kind}.delta", **inside, "delta": piece}
    name = {"name": item["name"]} if field == "arguments" else {}
    yield {"type": f"{kind}.done", **inside, **name, field: item[field]}


def _text_events(item: Mapping[str, Any], inside: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    part = item["content"][0]
    at = {**inside, "content_index": 0}
    spoken = item["type"] == "message"
    kind = "response.output_text" if spoken else "response.reasoning_text"
    logprobs: dict[str, Any] = {"logprobs": []} if spoken else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": f"{kind}.delta", **at, "delta": piece, **logprobs}
    yield {"type": f"{kind}.done", **at, "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", **at, "part": part}
