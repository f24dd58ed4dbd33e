"""Runs a tool call of the model and returns its observation."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError, SandboxError
from hermes_queue.models import ToolCall
from hermes_queue.tools.base import Tool, ToolContext

GRACE_S = 30.0
"""Extra time of a tool call beyond its own timeout, after which the sandbox counts as lost."""

MAX_ARGUMENT_CHARS = 8 << 20
"""Longest JSON text of a call's arguments; longer ones are refused unread."""
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_PROBLEMS = 10
"""Problems shown for a call with invalid arguments."""
_MAX_LISTED_PROBLEMS = 1000
"""If there are more problems they are counted, not listed: each is a separate object."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The answer to one tool call."""

    text: str
    """Observation for the model, at most `observation_bytes` long."""
    schema_valid: bool
    """Whether the tool exists and accepted the arguments; otherwise nothing ran."""
    ok: bool
    """The tool's own result; for commands: exit code 0 in time."""
    submits: bool = False
    """Whether the trajectory ends here."""


def load_tool(name: str) -> Tool:
    """A tool by name, see `extensions.load`. Raises ConfigurationError."""
    tool: Tool = extensions.load("tool", name)
    return tool


@cache
def _schema(tool: Tool) -> dict[str, Any]:
    """The tool's schema, generated once per process: it takes a millisecond, and calls are many."""
    return tool.schema()


class Toolbox:
    """The tools of one trajectory, bound to its slot."""

    def __init__(self, names: Sequence[str], context: ToolContext) -> None:
        self.context = context
        self._tools: dict[str, Tool] = {}
        for name in names:
            tool = load_tool(name)
            if tool.name in self._tools:
                raise ConfigurationError(f"two tools are called {tool.name!r}")
            self._tools[tool.name] = tool
        self.schemas: tuple[dict[str, Any], ...] = tuple(map(_schema, self._tools.values()))
        """OpenAI tool schemas, in the order of `names`."""

    @property
    def uses_slot(self) -> bool:
        """Whether a call may change the slot."""
        return any(tool.runs_in == "slot" for tool in self._tools.values())

    async def call(self, call: ToolCall) -> ToolOutcome:
        """Run one call. A mistake of the model is answered with text that it can act on.

        Raises DeadlineExceeded or SandboxError, also without an answer in time and `GRACE_S`.
        """
        tool = self._tools.get(call.function.name)
        if tool is None:
            return self._refuse(
                f"Unknown tool {call.function.name[:100]!a}. "
                f"Available tools: {', '.join(self._tools) or 'none'}."
            )
        try:
            decoded = _decode(call.function.arguments)
            arguments = tool.arguments.model_validate(decoded, strict=True)
            _require_unicode(call.function.arguments, decoded)
        except (ValidationError, _NotAnObject) as error:
            return self._refuse(_explain(tool, error))
        limit_s = self.context.budget_s() + GRACE_S
        try:
            async with asyncio.timeout(limit_s) as timer:
                result = await tool.run(self.context, arguments)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise SandboxError(f"no answer from tool {tool.name} within {limit_s:.0f} s") from error
        text = cap(result.text, self.context.observation_bytes)
        return ToolOutcome(
            text, schema_valid=True, ok=result.ok, submits=tool.submits and result.ok
        )

    def postpone(self, seconds: float) -> None:
        """Extend the stage's deadline by a wait that is not part of the agent's time."""
        self.context.slot.deadline += seconds

    def _refuse(self, text: str) -> ToolOutcome:
        return ToolOutcome(cap(text, self.context.observation_bytes), schema_valid=False, ok=False)


def cap(text: str, limit_bytes: int) -> str:
    """`text`, or its head and tail around a line with the number of missing bytes.

    Never longer than `limit_bytes` in UTF-8, and never cut inside a character.
    """
    data = text.encode(errors="replace")
    if len(data) <= limit_bytes:
        return data.decode()
    room = limit_bytes - len(_marker(len(data)))
    head, tail = data[: room - room // 2], data[len(data) - room // 2 :]
    cut_head, cut_tail = head.decode(errors="ignore"), tail.decode(errors="ignore")
    missing = len(data) - len(cut_head.encode()) - len(cut_tail.encode())
    return cut_head + _marker(missing) + cut_tail


def _marker(missing: int) -> str:
    return f"\n[... {missing} bytes left out ...]\n"


class _NotAnObject(ValueError):
    """The arguments are not a JSON object."""


def _decode(arguments: str) -> dict[str, Any]:
    """The JSON object in `arguments`; servers send "" for a call without arguments."""
    if len(arguments) > MAX_ARGUMENT_CHARS:
        raise _NotAnObject(
            f"the arguments have {len(arguments)} characters, more than {MAX_ARGUMENT_CHARS}"
        )
    try:
        value = json.loads(arguments or "{}")
    except RecursionError:
        raise _NotAnObject("the arguments are nested too deeply") from None
    except ValueError as error:
        raise _NotAnObject(f"the arguments are not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _NotAnObject(f"the arguments are a JSON {type(value).__name__}, not an object")
    return value


def _require_unicode(arguments: str, value: dict[str, Any]) -> None:
    """Refuse text with half of a surrogate pair: a tool that sends it to the slot would fail."""
    if arguments.isascii() and not _ESCAPED_HALF.search(arguments):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise _NotAnObject(
            "the arguments have half of a surrogate pair, which is no Unicode text"
        ) from None


def _explain(tool: Tool, error: ValidationError | _NotAnObject) -> str:
    if not isinstance(error, ValidationError):
        problems = str(error)
    elif error.error_count() > _MAX_LISTED_PROBLEMS:
        problems = f"{error.error_count()} unknown or wrong arguments"
    else:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in e['loc']) or 'arguments'}: {e['msg']}"
            for e in error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
        )
    schema = json.dumps(tool.schema()["function"]["parameters"])
    return (
        f"Invalid call of tool {tool.name}: {problems}.\n"
        f"Nothing was run. Expected one JSON object with this schema: {schema}"
    )
