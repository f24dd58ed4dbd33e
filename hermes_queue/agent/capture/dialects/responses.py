"""OpenAI's Responses: what `POST /v1/responses` asks for."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.agent.capture.dialects.base import Asked, BadCall, Dialect, Head, Previous
from hermes_queue.agent.capture.dialects.body import (
    flag,
    name_of,
    objects,
    optional_count,
    optional_name,
    optional_string,
    text_of,
    tidy,
    wrong,
)
from hermes_queue.agent.capture.dialects.chat import problem
from hermes_queue.agent.capture.dialects.conversation import (
    MESSAGES_MAX,
    TOOLS_MAX,
    Conversation,
    Events,
    arguments_text,
    function_tool,
    tool_call,
)
from hermes_queue.agent.capture.dialects.outputs import SEAL, stream, too_long_in_stream, whole
from hermes_queue.models import ToolCall

_IGNORED: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "truncation": ("disabled",),
    "max_tool_calls": (),
    "top_logprobs": (0,),
}
_NOT_OFFERED = {
    "background": "a reply is given at once: leave it out",
    "conversation": "conversations are not kept: send them as `input`",
    "prompt": "templates are not kept: send `input`",
}


def read(body: Mapping[str, Any], head: Head, previous: Previous) -> Asked:
    """What a body asks for. `previous` gives the conversations of `previous_response_id`."""
    for name, fix in _NOT_OFFERED.items():
        if body.get(name):
            raise BadCall(name, f"is not offered: {fix}")
    events = Events()
    events.ignored(body, _IGNORED)
    _ignore_format(body, events)
    tools, names = _tools(body, events)
    reading = _Items(_earlier(body, previous))
    reading.add_all(body.get("input"))
    include = body.get("include")
    call = ModelCall(
        dialect="responses",
        path=head.path,
        messages=reading.conversation.folded(text_of(body.get("instructions"), "instructions")),
        tools=tools,
        requested_model=optional_name(body, "model"),
        max_tokens=optional_count(body, "max_output_tokens"),
        streamed=flag(body, "stream"),
        retry_count=head.retry_count,
        hints=head.hints,
        events=events.made(),
    )
    return Asked(
        call,
        now_s=head.now_s,
        sealed_reasoning=isinstance(include, list) and "reasoning.encrypted_content" in include,
        namespaces=names.spaces,
        free_form=frozenset(names.free_form),
        continued=tuple(reading.conversation.messages) if flag(body, "store", True) else None,
    )


def _ignore_format(body: Mapping[str, Any], events: Events) -> None:
    text = body.get("text")
    if isinstance(text, dict):
        events.ignored(text, {"format": ({"type": "text"},)})


def _earlier(body: Mapping[str, Any], previous: Previous) -> Conversation:
    name = optional_name(body, "previous_response_id")
    if name is None:
        return Conversation()
    messages = previous(name)
    if messages is None:
        raise BadCall(
            "previous_response_id",
            f"{name!r} is not kept (any more): send the whole conversation as `input`",
        )
    return Conversation(messages)


# --- tools ------------------------------------------------------------------------------


class _Names:
    """Tools whose names or calls differ between the model and the client."""

    def __init__(self) -> None:
        self.spaces: dict[str, tuple[str, str]] = {}
        self.free_form: set[str] = set()


def _tools(body: Mapping[str, Any], events: Events) -> tuple[tuple[Mapping[str, Any], ...], _Names]:
    names = _Names()
    if body.get("tools") is None:
        return (), names
    found: list[Mapping[str, Any]] = []
    for place, tool in objects(body["tools"], "tools", TOOLS_MAX):
        if tool.get("type") == "namespace":
            space = name_of(tool.get("name"), f"{place}.name")
            for where, each in objects(tool.get("tools"), f"{place}.tools", TOOLS_MAX):
                found += _tool(where, each, space, names, events)
        else:
            found += _tool(place, tool, None, names, events)
    if len(found) > TOOLS_MAX:
        raise BadCall("tools", f"are {len(found):,}: at most {TOOLS_MAX:,} are taken")
    return tuple(found), names


def _tool(
    place: str, tool: Mapping[str, Any], space: str | None, names: _Names, events: Events
) -> Iterator[Mapping[str, Any]]:
    kind = tool.get("type", "function")
    if kind not in ("function", "custom"):
        events.add("server_tool_removed", "tools", kind)
        return
    name = name_of(tool.get("name"), f"{place}.name")
    shown = shown_name(space, name)
    if space is not None:
        names.spaces[shown] = space, name
    if kind == "function":
        yield function_tool(place, {**tool, "name": shown}, tool.get("parameters"))
        return
    names.free_form.add(shown)
    description = optional_string(tool.get("description"), f"{place}.description")
    yield function_tool(
        place, {"name": shown, "description": _free_form(description, tool, place)}, _FREE_FORM
    )


_FREE_FORM = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


def _free_form(description: str, tool: Mapping[str, Any], place: str) -> str:
    """The description of a tool that takes a text, with the text's grammar."""
    grammar = tool.get("format")
    if not isinstance(grammar, dict) or not isinstance(grammar.get("definition"), str):
        return description
    return f"{description}\nFormat of the input:\n{tidy(grammar['definition'])}".lstrip()


def shown_name(space: str | None, name: str) -> str:
    """Name of a tool as the model sees it."""
    if space is None:
        return name
    return f"{space}{name}" if space.endswith("__") else f"{space}__{name}"


# --- items ------------------------------------------------------------------------------


class _Items:
    """Reads `input`. Consecutive items of the model are one reply."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._text: str | None = None
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []
        self._open = False

    def add_all(self, given: Any) -> None:
        """All items, or the text of one message of the user."""
        if isinstance(given, str):
            self.conversation.user(tidy(given))
        elif given is not None:
            for place, item in objects(given, "input", MESSAGES_MAX):
                self._add(place, item)
        self._close()

    def _add(self, place: str, item: Mapping[str, Any]) -> None:
        kind = item.get("type", "message")
        add = _KINDS.get(kind) if isinstance(kind, str) else None
        if add is None:
            known = ", ".join(_KINDS)
            raise BadCall(f"{place}.type", f"is no item that is offered: send one of {known}")
        add(self, place, item)

    def _close(self) -> None:
        if self._open:
            self.conversation.assistant(self._text or "", "".join(self._thoughts), self._calls)
        self._text, self._thoughts, self._calls, self._open = None, [], [], False

    def message(self, place: str, item: Mapping[str, Any]) -> None:
        role, where = item.get("role"), f"{place}.content"
        if role == "assistant":
            if self._text is not None or self._calls:  # a reply has one text, before its calls
                self._close()
            self._text = text_of(item.get("content"), where, between="", other=_is_refusal)
            self._open = True
            return
        self._close()
        if role == "user":
            self.conversation.user(text_of(item.get("content"), where))
        elif role in ("system", "developer"):
            self.conversation.system(text_of(item.get("content"), where))
        else:
            raise BadCall(
                f"{place}.role", "is not known: send system, developer, user or assistant"
            )

    def reasoning(self, place: str, item: Mapping[str, Any]) -> None:
        if self._text is not None or self._calls:
            self._close()
        self._thoughts.append(_thought(item, place))
        self._open = True

    def call(self, place: str, item: Mapping[str, Any]) -> None:
        arguments = arguments_text(item.get("arguments"), f"{place}.arguments")
        space = optional_name(item, "namespace")
        name = shown_name(space, name_of(item.get("name"), f"{place}.name"))
        self._calls.append(tool_call(place, item.get("call_id"), name, arguments))
        self._open = True

    def free_form_call(self, place: str, item: Mapping[str, Any]) -> None:
        text = optional_string(item.get("input"), f"{place}.input")
        self.call(place, {**item, "arguments": json.dumps({"input": text}, ensure_ascii=False)})

    def result(self, place: str, item: Mapping[str, Any]) -> None:
        self._close()
        call_id = name_of(item.get("call_id"), f"{place}.call_id")
        self.conversation.result(call_id, text_of(item.get("output"), f"{place}.output"))


_KINDS: dict[str, Callable[[_Items, str, Mapping[str, Any]], None]] = {
    "message": _Items.message,
    "reasoning": _Items.reasoning,
    "function_call": _Items.call,
    "function_call_output": _Items.result,
    "custom_tool_call": _Items.free_form_call,
    "custom_tool_call_output": _Items.result,
}


def _is_refusal(place: str, part: Mapping[str, Any]) -> bool:
    return part.get("type") == "refusal"


def _thought(item: Mapping[str, Any], place: str) -> str:
    """The reasoning of an item: as given, as we sealed it, or its summary."""
    if item.get("content"):
        return _texts(item["content"], f"{place}.content", "reasoning_text")
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and sealed.startswith(SEAL):
        try:
            return tidy(base64.b64decode(sealed.removeprefix(SEAL), validate=True).decode())
        except (binascii.Error, ValueError):
            raise BadCall(
                f"{place}.encrypted_content", "is not what was sent: send it back as it was"
            ) from None
    if item.get("summary"):
        return _texts(item["summary"], f"{place}.summary", "summary_text")
    return ""


def _texts(parts: Any, place: str, kind: str) -> str:
    if not isinstance(parts, list):
        raise wrong(place, parts, "a list of parts")
    return "".join(
        optional_string(part.get("text"), f"{where}.text")
        for where, part in objects(parts, place, MESSAGES_MAX)
        if part.get("type") in (kind, "text")
    )


DIALECT = Dialect(
    name="responses",
    read=read,
    whole=whole,
    stream=stream,
    problem=problem,
    waiting=b": keepalive\n",
    too_long_in_stream=too_long_in_stream,
)
