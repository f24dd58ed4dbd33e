"""What a person enters: a shell command, a tool call, an answer, or a command of the session."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import ValidationError

from hermes_queue.models import FunctionCall, Message, ToolCall
from hermes_queue.tools.base import Tool

SessionCommand = Literal["diff", "help", "limits", "prompt", "quit", "tools"]
"""What does not become part of the trajectory."""

_OURS = re.compile(r":([A-Za-z_][\w-]*)(?:\s+|$)(.*)", re.DOTALL)
"""`:name rest`. A colon and a blank begin a shell command: `: > file`."""
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

HELP = """\
  COMMAND              run it in the slot, as the tool `terminal` does for the agent
  :submit [SUMMARY]    hand the work in as it is now; then it is graded
  :answer TEXT         answer with a message instead of a tool call, which ends the trajectory
  :NAME ARGUMENTS      call any other tool: `:read_file setup.py offset=10`, `:calculator 6*7`,
                       `:write_file path=a.txt content='two words'`
  :tool NAME JSON      call a tool with exactly these arguments, right or wrong
  :diff                what has changed in the workspace (git); no part of the trajectory
  :prompt :tools :limits :help
  :quit, Ctrl-D        end without a verdict
  Ctrl-C               end the command that runs, not the session
A line that ends in \\ goes on in the next one. The lines between `:{` and `:}` are one entry."""


class Mistake(ValueError):
    """What was entered cannot be sent; the text says what can."""


class EntryReader:
    """Turns what a person enters into the agent's messages."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._count = 0

    def read(self, text: str) -> Message | SessionCommand:
        """The message that `text` stands for, or a command of the session.

        Raises:
            Mistake: it is neither; nothing is to be sent.
        """
        ours = _OURS.fullmatch(text)
        if ours is None:
            if "terminal" not in self._tools:
                raise Mistake(f"this env has no terminal; {self._offer()}")
            return self._call("terminal", {"command": text})
        name, rest = ours[1], ours[2]
        if name in get_args(SessionCommand):
            command: SessionCommand = name  # type: ignore[assignment]
            return command
        match name:
            case "answer":
                return Message(role="assistant", content=rest)
            case "tool":
                return self._as_it_is(rest)
            case "submit" if "submit" not in self._tools:
                raise Mistake(f"this env has no tool submit; {self._offer()}")
        if name not in self._tools:
            raise Mistake(f"there is no :{name}; {self._offer()}")
        return self._call(name, _arguments(self._tools[name], rest))

    def _offer(self) -> str:
        names = [f":{name}" for name in self._tools if name != "terminal"]
        return f"there are {' '.join([*names, ':answer', ':help'])}"

    def _as_it_is(self, rest: str) -> Message:
        name, _, arguments = rest.strip().partition(" ")
        if not name:
            raise Mistake(':tool NAME JSON, e.g. :tool terminal {"command": "ls"}')
        return self._message(name, arguments.strip() or "{}")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Message:
        try:
            self._tools[name].arguments.model_validate(arguments, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "arguments"
            raise Mistake(f"{place}: {first['msg']}; {usage(self._tools[name])}") from error
        return self._message(name, json.dumps(arguments))

    def _message(self, name: str, arguments: str) -> Message:
        self._count += 1
        function = FunctionCall(name=name, arguments=arguments)
        call = ToolCall(id=f"human_{self._count}", function=function)
        return Message(role="assistant", tool_calls=(call,))


def usage(tool: Tool) -> str:
    """How to call the tool: `:read_file path [offset=] [limit=]`."""
    fields = tool.arguments.model_fields.items()
    words = [name if field.is_required() else f"[{name}=]" for name, field in fields]
    return " ".join([f":{tool.name}", *words])


def _arguments(tool: Tool, rest: str) -> dict[str, Any]:
    """The arguments in `rest`: JSON, NAME=VALUE words, and text for the first required one.

    Without a NAME= of the tool's own, all of `rest` is that text, with its quotes.
    """
    rest, fields = rest.strip(), tool.arguments.model_fields
    if rest.startswith("{") and (given := _json_object(rest)) is not None:
        return given
    required = [name for name, field in fields.items() if field.is_required()]
    first = next(iter(required or fields), None)
    try:
        words = shlex.split(rest)
    except ValueError:  # an unpaired quote: text such as "it's done"
        words = [rest]
    matches = [_NAMED.fullmatch(word) for word in words]
    named = {found[1]: found[2] for found in matches if found and found[1] in fields}
    text = rest
    if named:
        text = " ".join(
            word
            for word, found in zip(words, matches, strict=True)
            if not (found and found[1] in named)
        )
    if text:
        if first is None or first in named:
            raise Mistake(f"cannot place {text[:100]!r}; {usage(tool)}")
        named[first] = text
    properties = tool.schema()["function"]["parameters"].get("properties", {})
    return {name: _value(text, properties.get(name, {})) for name, text in named.items()}


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as a value of the schema's type; as it is where that is text or unclear."""
    kinds = {each.get("type") for each in (schema, *schema.get("anyOf", ()))}
    if "string" in kinds:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
