"""Converts an endpoint's JSON to our records, and our messages to the endpoint's format.

Servers differ, and none of their fields can be trusted to have the right type. Anything invalid
raises `MalformedReply`, which the client treats like any other server fault.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.models import FunctionCall, Message, ToolCall, Usage

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""vLLM and OpenRouter use the first, SGLang the second."""
ID_MAX = 2**31 - 1
"""Largest token id: records keep ids as int32."""
COUNT_MAX = 2**31 - 1
"""Largest token count or token index in one answer, so that sums stay exact in budgets and
costs."""
LARGE_BYTES = 1 << 20
"""Larger answers are parsed in a thread: their lists of ids take a while."""
NAME_MAX = 64
"""Length of a function name that every server accepts (OpenAI's limit, as is the pattern)."""
_LEGAL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_MAX}}}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
GIVEN_UP = frozenset({"abort", "error"})
"""Finish reasons of requests that the server aborted: to load weights (vLLM, SGLang), or after an
error (vLLM, OpenRouter)."""


T = TypeVar("T")


class MalformedReply(ValueError):
    """The server answered 200 with something other than a chat completion."""


async def read(parse: Callable[[bytes], T], answer: bytes) -> T:
    """`parse(answer)`, for a large answer in a thread. Raises the errors of `parse`."""
    if len(answer) <= LARGE_BYTES:
        return parse(answer)
    return await asyncio.to_thread(parse, answer)


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
    logprobs: tuple[float, ...] | None
    policy_version: str | None
    """Version of the weights, as the server reports it."""
    policy_spans: tuple[tuple[str, int], ...] = ()
    """See `Turn.policy_spans`."""
    model: str | None = None
    """Name of the model, as the server reports it."""


def parse(body: bytes, *, turn: int) -> Completion:
    """Read the first choice of a chat completion.

    Args:
        body: body of the HTTP response.
        turn: index of the turn, for tool calls that came without an id.

    Raises:
        MalformedReply: not JSON, without choices, or with a field of the wrong type.
    """
    try:
        data = json.loads(body)
        choice = _choice(data)
        message, reasoning_field = _message(choice["message"], turn)
        ids = read_ids(_given(data.get("prompt_token_ids"), choice.get("prompt_token_ids")))
        completion_ids = read_ids(_given(choice.get("token_ids"), choice.get("response_token_ids")))
        return Completion(
            message=message,
            reasoning_field=reasoning_field,
            finish_reason=finished(_optional_text(choice.get("finish_reason"))),
            usage=_usage(data.get("usage") or {}),
            prompt_ids=ids,
            completion_ids=completion_ids,
            logprobs=_logprobs(choice.get("logprobs"), completion_ids),
            **_served_by(data, choice),
            model=_optional_text(data.get("model")),
        )
    except MalformedReply:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        start = body[:200].decode(errors="replace")
        raise MalformedReply(f"{type(error).__name__}: {error}; body: {start!r}") from error


def finished(reason: str | None) -> str | None:
    """Return `reason` if it is the regular end of a reply.

    A reply that the server aborted does not show what the policy would have said, so it is
    neither a turn to train on nor the end of a trajectory.

    Raises:
        MalformedReply: the server aborted the request.
    """
    if reason in GIVEN_UP:
        raise MalformedReply(f"the server aborted the request, finish_reason {reason!r}")
    return reason


def _given(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


class ServedBy(TypedDict):
    """The fields of `Turn` with the same names."""

    policy_version: str | None
    policy_spans: tuple[tuple[str, int], ...]


def _served_by(data: Mapping[str, Any], choice: Mapping[str, Any]) -> ServedBy:
    """SGLang's version in `metadata`, or in the choice's `meta_info`; proxies may move it up."""
    for place in (data, data.get("metadata"), choice.get("meta_info")):
        if isinstance(place, dict) and (served := served_by(place))["policy_version"] is not None:
            return served
    return ServedBy(policy_version=None, policy_spans=())


def served_by(answer: Mapping[str, Any]) -> ServedBy:
    """The weights that sampled the tokens, if the server reports them (SGLang does); else None.

    SGLang reports "default" as long as nobody has named the weights. If they were updated during
    a completion it adds `weight_versions`, a list of {version, start, end}.

    Raises:
        KeyError, TypeError, ValueError: the list or an index is malformed.
    """
    version = _optional_text(answer.get("weight_version"))
    spans = tuple(
        (clean(str(span["version"])), read_count(span["start"], "weight_versions: start"))
        for span in answer.get("weight_versions") or ()
    )
    return ServedBy(
        policy_version=None if version == "default" else version,
        policy_spans=spans if len(spans) > 1 else (),
    )


def _choice(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise MalformedReply(f"the body is a JSON {type(data).__name__}")
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
        content=_optional_text(data.get("content")),
        reasoning=_optional_text(data[field]) if field else None,
        tool_calls=calls,
    )
    return message, field


def _tool_call(data: Mapping[str, Any], default_id: str) -> ToolCall:
    """A call of either kind; the free-form input of a custom tool becomes its arguments."""
    part = data.get("function") or data.get("custom") or {}
    arguments = part.get("arguments", part.get("input"))
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    name = _optional_text(part.get("name")) or ""
    return ToolCall(
        id=_optional_text(data.get("id")) or default_id,
        function=FunctionCall(name=name, arguments=clean(arguments)),
    )


def _optional_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, list):  # content in parts
        value = "".join(part.get("text") or "" for part in value)
    if not isinstance(value, str | int | float):
        raise MalformedReply(f"expected text, not {type(value).__name__}")
    return clean(str(value))


def clean(text: str) -> str:
    """Replace lone surrogates, which are valid in JSON but not in UTF-8."""
    return text.encode(errors="replace").decode()


def read_ids(value: Any) -> tuple[int, ...] | None:
    """The token ids, or None if there are none.

    Raises:
        MalformedReply: the value is something else.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        raise MalformedReply("token ids are not a list of integers")
    if value and not 0 <= min(value) <= max(value) <= ID_MAX:
        raise MalformedReply(f"a token id is not within 0 and {ID_MAX}")
    return tuple(value)


def read_count(value: Any, name: str) -> int:
    """A token count or token index; 0 if the value is None.

    Raises:
        MalformedReply: it is negative, too large, or not an integer.
    """
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise MalformedReply(f"{name} is {value!r:.60}, not within 0 and {COUNT_MAX}")
    return value


def read_usage(answer: Mapping[str, Any], cached: Any, prompt: int = 0) -> Usage:
    """The usage that a server reports; without a prompt count, `prompt` stands in.

    Raises:
        MalformedReply: one of the numbers is invalid.
    """
    return Usage(
        prompt_tokens=read_count(answer.get("prompt_tokens"), "prompt_tokens") or prompt,
        completion_tokens=read_count(answer.get("completion_tokens"), "completion_tokens"),
        cached_tokens=read_count(cached, "cached_tokens"),
    )


def _logprobs(value: Any, ids: Sequence[int] | None) -> tuple[float, ...] | None:
    """One logprob per id of the completion; None without ids."""
    if ids == ():
        return ()
    if ids is None or not value or value.get("content") is None:
        return None
    logprobs = round_float32(entry["logprob"] for entry in value["content"])
    if len(logprobs) != len(ids):
        raise MalformedReply(f"{len(ids)} token ids but {len(logprobs)} logprobs")
    return logprobs


def _usage(data: Mapping[str, Any]) -> Usage:
    details = data.get("prompt_tokens_details") or {}
    return read_usage(data, details.get("cached_tokens"))


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
