"""OpenAI's Chat Completions: `POST /v1/chat/completions`."""

from __future__ import annotations

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
    event,
    finish_reason,
    pieces,
)
from hermes_queue.agent.capture.dialects.body import (
    flag,
    name_of,
    objects,
    optional_count,
    optional_name,
    optional_string,
    text_of,
    wrong,
)
from hermes_queue.agent.capture.dialects.conversation import (
    MESSAGES_MAX,
    TOOLS_MAX,
    Conversation,
    Events,
    arguments_text,
    function_tool,
    tool_call,
)
from hermes_queue.agent.endpoint.reply import REASONING_FIELDS
from hermes_queue.models import Message, ToolCall, Usage

_IGNORED: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto",),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "prediction": (),
    "parallel_tool_calls": (True,),
}
"""Fields that would change the reply and do not, with the values that ask for nothing."""


def read(body: Mapping[str, Any], head: Head, previous: Previous) -> Asked:
    """What a body asks for."""
    if (count := optional_count(body, "n")) is not None and count > 1:
        raise BadCall("n", f"is {count}: one reply is given per call, so leave it out")
    for name in ("functions", "function_call"):
        if body.get(name):
            raise BadCall(name, "is the old form of tools: send `tools`")
    if body.get("modalities") not in (None, [], ["text"]):
        raise BadCall("modalities", "is more than text, which is all that is offered: leave it out")
    events = Events()
    events.ignored(body, _IGNORED)
    events.removed(body, ("web_search_options", "plugins"))
    conversation = Conversation()
    for place, message in objects(body.get("messages"), "messages", MESSAGES_MAX):
        _add(conversation, place, message)
    limits = [optional_count(body, name) for name in ("max_tokens", "max_completion_tokens")]
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise wrong("stream_options", options, "an object")
    call = ModelCall(
        dialect="chat",
        path=head.path,
        messages=conversation.folded(),
        tools=_tools(body, events),
        requested_model=optional_name(body, "model"),
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        streamed=flag(body, "stream"),
        retry_count=head.retry_count,
        hints=head.hints,
        events=events.made(),
    )
    return Asked(call, now_s=head.now_s, usage_in_stream=flag(options, "include_usage"))


def _add(conversation: Conversation, place: str, message: Mapping[str, Any]) -> None:
    role, content, where = message.get("role"), message.get("content"), f"{place}.content"
    if role == "assistant":
        conversation.assistant(
            text_of(content, where, between="", other=_is_refusal),
            _reasoning(message, place),
            _calls(message, place),
        )
    elif role == "tool":
        call_id = name_of(message.get("tool_call_id"), f"{place}.tool_call_id")
        conversation.result(call_id, text_of(content, where))
    elif role == "user":
        conversation.user(text_of(content, where))
    elif role in ("system", "developer"):
        conversation.system(text_of(content, where))
    else:
        raise BadCall(
            f"{place}.role", "is not known: send system, developer, user, assistant or tool"
        )


def _is_refusal(place: str, part: Mapping[str, Any]) -> bool:
    """Replies have none; clients add one that is empty."""
    return part.get("type") == "refusal"


def _reasoning(message: Mapping[str, Any], place: str) -> str:
    for name in REASONING_FIELDS:
        if isinstance(message.get(name), str):
            return optional_string(message[name], f"{place}.{name}")
    return ""


def _calls(message: Mapping[str, Any], place: str) -> list[ToolCall]:
    if message.get("function_call"):
        raise BadCall(f"{place}.function_call", "is the old form of calls: send `tool_calls`")
    if message.get("tool_calls") is None:
        return []
    found = []
    for where, call in objects(message["tool_calls"], f"{place}.tool_calls", TOOLS_MAX):
        function = call.get("function")
        if not isinstance(function, dict):
            raise wrong(f"{where}.function", function, "an object")
        arguments = arguments_text(function.get("arguments"), f"{where}.function.arguments")
        found.append(tool_call(where, call.get("id"), function.get("name"), arguments))
    return found


def _tools(body: Mapping[str, Any], events: Events) -> tuple[Mapping[str, Any], ...]:
    if body.get("tools") is None:
        return ()
    found = []
    for place, tool in objects(body["tools"], "tools", TOOLS_MAX):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            events.add("server_tool_removed", "tools", tool.get("type"))
        elif not isinstance(function, dict):
            raise wrong(f"{place}.function", function, "an object")
        else:
            found.append(function_tool(f"{place}.function", function, function.get("parameters")))
    return tuple(found)


# --- the answer -------------------------------------------------------------------------


def whole(asked: Asked, answer: Answer, model: str) -> dict[str, Any]:
    """The answer as a `chat.completion`."""
    message = answer.message
    said: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning and asked.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": finish_reason(answer)}
    head = _head(asked, answer, model, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(answer.usage)}


def stream(asked: Asked, answer: Answer, model: str) -> Iterator[bytes]:
    """The answer as `chat.completion.chunk`s and the end `[DONE]`."""
    head = _head(asked, answer, model, "chat.completion.chunk")
    if asked.usage_in_stream:
        head["usage"] = None

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**head, "choices": [choice]})

    first: dict[str, Any] = {"role": "assistant", "content": None}
    if answer.message.content is not None:
        first["content"] = ""
    yield chunk(first)
    for delta in _deltas(answer.message, asked):
        yield chunk(delta)
    yield chunk({}, finish_reason(answer))
    if asked.usage_in_stream:
        yield event({**head, "choices": [], "usage": _usage(answer.usage)})
    yield b"data: [DONE]\n\n"


def _deltas(message: Message, asked: Asked) -> Iterator[Mapping[str, Any]]:
    if asked.reasoning:
        for piece in pieces(message.reasoning or ""):
            yield {"reasoning_content": piece}
    for piece in pieces(message.content or ""):
        yield {"content": piece}
    for index, call in enumerate(message.tool_calls):
        first, *rest = [*pieces(call.function.arguments)] or [""]
        begun = _call(call)
        begun["function"]["arguments"] = first
        yield {"tool_calls": [{"index": index, **begun}]}
        for piece in rest:
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _head(asked: Asked, answer: Answer, model: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.turn}",
        "object": kind,
        "created": asked.now_s,
        "model": asked.model(model),
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def problem(found: Problem) -> dict[str, Any]:
    """An error as OpenAI's APIs give it."""
    kind = {401: "authentication_error", 404: "not_found_error", 500: "server_error"}
    error = {
        "message": found.message,
        "type": kind.get(found.status, "server_error" if found.status > 500 else _INVALID),
        "param": found.place,
        "code": found.code,
    }
    return {"error": error}


_INVALID = "invalid_request_error"

DIALECT = Dialect(
    name="chat", read=read, whole=whole, stream=stream, problem=problem, waiting=b": keepalive\n"
)
