"""Converts an endpoint's JSON to our records, and our messages to the endpoint's format.

The rules of one kind of server are in its module of `hermes_queue.agent.tokens.servers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.agent.tokens.servers import own_servers
from hermes_queue.agent.tokens.servers.base import (
    UNKNOWN_POLICY,
    MalformedReply,
    ServedBy,
    clean,
    finished,
    json_object,
    optional_text,
    read_ids,
    read_usage,
    reader,
)
from hermes_queue.models import FunctionCall, Message, ToolCall, Usage

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""vLLM and OpenRouter use the first, SGLang the second."""
NAME_MAX = 64
"""Length of a function name that every server accepts (OpenAI's limit, as is the pattern)."""
_LEGAL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_MAX}}}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Completion:
    """The parts of a chat completion that we use."""

    message: Message
    reasoning_field: str | None
    """Field in which this server sends reasoning and expects it back."""
    finish_reason: str | None
    usage: Usage
    prompt_ids: tuple[int, ...] | None
    completion_ids: tuple[int, ...] | None
    logprobs: Sequence[float] | None
    policy_version: str | None
    """Version of the weights, as the server reports it."""
    policy_spans: tuple[tuple[str, int], ...] = ()
    """See `Turn.policy_spans`."""
    model: str | None = None
    """Name of the model, as the server reports it."""
    context_bound: bool = False
    """See `Reply.context_bound`."""
    ended_by_token: bool | None = None
    """See `Anchor.ended_by_token`; None if the reply was not sampled by ids."""


@reader
def parse(body: bytes, *, turn: int) -> Completion:
    """Read the first choice; `turn` makes the ids that calls lack. Raises MalformedReply."""
    data = json_object(body)
    choice, usage = _choice(data), data.get("usage") or {}
    message, reasoning_field = _message(choice["message"], turn)
    ids = read_ids(_given(data.get("prompt_token_ids"), choice.get("prompt_token_ids")))
    completion_ids = read_ids(_given(choice.get("token_ids"), choice.get("response_token_ids")))
    return Completion(
        message=message,
        reasoning_field=reasoning_field,
        finish_reason=finished(optional_text(choice.get("finish_reason")), _given_up()),
        usage=read_usage(usage, (usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
        prompt_ids=ids,
        completion_ids=completion_ids,
        logprobs=_logprobs(choice.get("logprobs"), completion_ids),
        **_served_by(data, choice),
        model=optional_text(data.get("model")),
    )


def _given(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def _served_by(data: Mapping[str, Any], choice: Mapping[str, Any]) -> ServedBy:
    """The weights that sampled, if the server reports them."""
    for server in own_servers().values():
        served = server.served_by(data, choice)
        if served["policy_version"] is not None:
            return served
    return UNKNOWN_POLICY


@cache
def _given_up() -> frozenset[str]:
    return frozenset.union(*(server.given_up for server in own_servers().values()))


def _choice(data: Mapping[str, Any]) -> dict[str, Any]:
    choices = data.get("choices")
    if not choices:
        error = data.get("error") or data.get("message")  # SGLang does not nest it
        raise MalformedReply(f"no choices in the reply{f': {str(error)[:500]}' if error else ''}")
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise MalformedReply("the choice has no message")
    return choice


def _message(data: Mapping[str, Any], turn: int) -> tuple[Message, str | None]:
    field = next((name for name in REASONING_FIELDS if data.get(name)), None)
    calls = tuple(
        _tool_call(call, f"call_{turn}_{i}") for i, call in enumerate(data.get("tool_calls") or ())
    )
    if len({call.id for call in calls}) < len(calls):
        # An observation refers to its call by id, so equal ids would be ambiguous.
        calls = tuple(
            call.model_copy(update={"id": f"call_{turn}_{i}"}) for i, call in enumerate(calls)
        )
    message = Message(
        role="assistant",
        content=optional_text(data.get("content")),
        reasoning=optional_text(data[field]) if field else None,
        tool_calls=calls,
    )
    return message, field


def _tool_call(data: Mapping[str, Any], default_id: str) -> ToolCall:
    """A call of either kind; the free-form input of a custom tool becomes its arguments."""
    part = data.get("function") or data.get("custom") or {}
    arguments = part.get("arguments", part.get("input"))
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    name = optional_text(part.get("name")) or ""
    return ToolCall(
        id=optional_text(data.get("id")) or default_id,
        function=FunctionCall(name=name, arguments=clean(arguments)),
    )


def _logprobs(value: Any, ids: Sequence[int] | None) -> Sequence[float] | None:
    """One logprob per id of the completion; None without ids."""
    if ids == ():
        return ()
    if ids is None or not value or value.get("content") is None:
        return None
    logprobs = round_float32(entry["logprob"] for entry in value["content"])
    if len(logprobs) != len(ids):
        raise MalformedReply(f"{len(ids)} token ids but {len(logprobs)} logprobs")
    return logprobs


def to_wire(
    messages: Sequence[Message], reasoning_field: str | None, tools: Sequence[Any] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages in the endpoint's format, and the ids of calls that were rewritten.

    Servers check the calls of the history and refuse the whole request if the model got one
    wrong. So arguments that are not a JSON object are wrapped in one, and a name that is neither
    one of `tools` nor valid is replaced by a valid one.
    """
    offered = {tool["function"]["name"] for tool in tools}
    wire: list[dict[str, Any]] = []
    rewritten: list[str] = []
    for message in messages:
        data = message.to_openai()
        if reasoning_field and message.reasoning:
            data[reasoning_field] = message.reasoning
        for call in data.get("tool_calls", ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            legal = name in offered or _LEGAL_NAME.fullmatch(name) is not None
            if not legal:
                name = _NOT_IN_NAMES.sub("_", name[:NAME_MAX]) or "unnamed"
                call["function"]["name"] = name
            if not _is_object(arguments):
                call["function"]["arguments"] = json.dumps({"invalid_arguments": arguments})
                legal = False
            if not legal:
                rewritten.append(call["id"])
        wire.append(data)
    return wire, rewritten


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
