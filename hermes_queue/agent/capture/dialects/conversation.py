"""Messages and tools in the terms that all dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hermes_queue.agent.capture.dialects.base import BadCall
from hermes_queue.agent.capture.dialects.body import (
    bounded,
    name_of,
    optional_string,
    read_json,
    schema,
    short,
    tidy,
    wrong,
)
from hermes_queue.models import FunctionCall, Message, ToolCall

MESSAGES_MAX = 10_000
"""Of messages and calls together: each is an object, however short it is."""
TOOLS_MAX = 1_000
UNPARSED = "invalid_arguments"
"""Field of a call's input that holds arguments which are no JSON object."""


class Conversation:
    """Messages in order, made from any dialect's items."""

    def __init__(self, earlier: Iterable[Message] = ()) -> None:
        """Begin with the messages of a stored conversation."""
        self.messages: list[Message] = list(earlier)
        """As they came, system messages included."""
        self._left = MESSAGES_MAX - sum(map(_weight, self.messages))

    def system(self, text: str) -> None:
        """A message of the role system or developer."""
        if text:
            self._add(Message(role="system", content=text))

    def user(self, text: str) -> None:
        """A message of the user."""
        self._add(Message(role="user", content=text))

    def result(self, call_id: str, text: str) -> None:
        """The result of a call."""
        self._add(Message(role="tool", content=text, tool_call_id=call_id))

    def assistant(self, text: str, reasoning: str, calls: Sequence[ToolCall]) -> None:
        """A reply of the model, or what the program says was one."""
        self._add(
            Message(
                role="assistant",
                content=text or None,
                reasoning=reasoning or None,
                tool_calls=tuple(calls),
            )
        )

    def _add(self, message: Message) -> None:
        self._left -= _weight(message)
        if self._left < 0:
            raise BadCall("", f"the conversation has more than {MESSAGES_MAX:,} messages and calls")
        self.messages.append(message)

    def folded(self, instructions: str = "") -> tuple[Message, ...]:
        """The messages with one system message at most, which is the first.

        Chat templates refuse others, or drop them. Those at the beginning are joined, after
        `instructions`; a later one becomes a message of the user that says what it is, so that the
        messages before it stay what they were in earlier calls.
        """
        count = next((i for i, each in enumerate(self.messages) if each.role != "system"), None)
        first, rest = self.messages[:count], self.messages[count:] if count is not None else []
        texts = [instructions, *(each.content or "" for each in first)]
        folded = [Message(role="system", content=text)] if (text := join(texts)) else []
        folded += [_demoted(each) if each.role == "system" else each for each in rest]
        if not folded:
            raise BadCall("", "the conversation is empty: send at least one message")
        return tuple(folded)


def _weight(message: Message) -> int:
    return 1 + len(message.tool_calls)


def join(texts: Iterable[str]) -> str:
    """The texts that are not empty, with a blank line between them."""
    return "\n\n".join(filter(None, texts))


def _demoted(message: Message) -> Message:
    return Message(role="user", content=f"<system_message>\n{message.content}\n</system_message>")


def tool_call(place: str, call_id: Any, name: Any, arguments: str) -> ToolCall:
    """A call of the history. `place` is that of the object which holds all of it."""
    return ToolCall(
        id=name_of(call_id, f"{place}.id"),
        function=FunctionCall(name=name_of(name, f"{place}.name"), arguments=arguments),
    )


def arguments_text(value: Any, place: str) -> str:
    """The arguments of a call of the history: a text, or the object that it stands for."""
    if value is None or isinstance(value, str):
        return optional_string(value, place)
    if not isinstance(value, dict):
        raise wrong(place, value, "a text with a JSON object")
    if set(value) == {UNPARSED} and isinstance(value[UNPARSED], str):
        text = optional_string(value[UNPARSED], place)
        if arguments_object(text) == {UNPARSED: text}:
            return text
    bounded(value, place)
    text = json.dumps(value, ensure_ascii=False)
    return text if tidy(text) == text else json.dumps(value)


def arguments_object(text: str) -> dict[str, Any]:
    """Arguments as the object that clients expect; what they could not send back is wrapped."""
    if not text:
        return {}
    try:
        found = read_json(text)
        bounded(found, "")
    except (BadCall, ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {UNPARSED: text}


def function_tool(place: str, tool: Mapping[str, Any], parameters: Any) -> dict[str, Any]:
    """The OpenAI function schema of a tool; `tool` holds its name, description and strictness."""
    function: dict[str, Any] = {"name": name_of(tool.get("name"), f"{place}.name")}
    if tool.get("description") is not None:
        where = f"{place}.description"
        function["description"] = short(optional_string(tool["description"], where), where)
    if parameters is not None:
        function["parameters"] = schema(parameters, f"{place}.parameters")
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


class Events:
    """What a dialect changed in a call, each distinct thing once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], None] = {}

    def add(self, kind: str, field: str, value: Any) -> None:
        """`value` is what was left out; of an object or a list only that it was one."""
        if isinstance(value, dict | list):
            value = "an object" if isinstance(value, dict) else "a list"
        self._found[kind, field, tidy(str(value)[:100])] = None

    def ignored(self, body: Mapping[str, Any], defaults: Mapping[str, Sequence[Any]]) -> None:
        """Note the fields whose value is not one of those that change nothing."""
        for name, harmless in defaults.items():
            if body.get(name) is not None and body[name] not in harmless:
                value = body[name]
                self.add("field_ignored", name, _type(value) if isinstance(value, dict) else value)

    def removed(self, body: Mapping[str, Any], names: Iterable[str]) -> None:
        """Note the fields that ask for tools of the server."""
        for name in names:
            if body.get(name):
                self.add("server_tool_removed", name, name)

    def made(self) -> tuple[Mapping[str, Any], ...]:
        """The events, in the order in which they were found."""
        return tuple(
            {"event": kind, "field": field, "value": value} for kind, field, value in self._found
        )


def _type(value: Mapping[str, Any]) -> Any:
    return value.get("type", value)
