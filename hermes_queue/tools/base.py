"""The classes of a tool: its arguments, its context and its result."""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from hermes_queue.models import FunctionCall, ToolCall
from hermes_queue.sandbox.context import SlotContext


class Arguments(BaseModel):
    """Base of a tool's arguments. Unknown names are an error: models misspell them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL characters")
    return text


Line = Annotated[str, AfterValidator(_without_nul)]
"""Text for an argument vector or a path, which cannot contain NUL."""

MAX_PATH_CHARS = 4096
"""Longest path of a file; an argument vector could not hold a much longer one."""


def _short_enough(path: str) -> str:
    if len(path) > MAX_PATH_CHARS:
        raise ValueError(f"must not be longer than {MAX_PATH_CHARS} characters")
    return path


FilePath = Annotated[Line, AfterValidator(_short_enough)]
"""Path of a file or directory in the slot."""

P = ParamSpec("P")
T = TypeVar("T")

_TEXT_THREADS = 2
"""Few, since they share one interpreter; more threads would only use more memory."""


@cache
def _text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="tool-text")


async def beside_the_loop(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Work on a long text in a thread; bounded work, because a thread cannot be cancelled."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_text_threads(), partial(call, *args, **kwargs))


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The slot of a tool call, and its limits."""

    slot: SlotContext
    timeout_s: float
    observation_bytes: int

    def path(self, path: str) -> str:
        """`path` as an absolute path; a relative one starts at the workspace."""
        return posixpath.normpath(posixpath.join(self.slot.workspace, path))

    def budget_s(self, requested_s: float | None = None) -> float:
        """Seconds that a command may run: the call's own timeout within the tool's and stage's."""
        return max(0.0, min(requested_s or self.timeout_s, self.timeout_s, self.slot.remaining_s()))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The observation for the model. `ok` is counted but does not affect the score."""

    text: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: a name, a pydantic model of the arguments, and a function that runs a call."""

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[ToolContext, Any], Awaitable[ToolResult]]
    """Runs one call. It raises only `SandboxError` or `DeadlineExceeded`; a mistake of the model is
    a `ToolResult`."""
    runs_in: Literal["slot", "worker"] = "slot"
    submits: bool = False
    """A successful call ends the trajectory with stop reason `submitted`."""

    def schema(self) -> dict[str, Any]:
        """The OpenAI tool schema."""
        parameters = self.arguments.model_json_schema()
        parameters.pop("title", None)
        parameters.pop("description", None)
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": parameters,
            },
        }


def make_call(call_id: str, name: str, **arguments: Any) -> ToolCall:
    """A well-formed call, for scripted agents and gold answers."""
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=json.dumps(arguments)))
