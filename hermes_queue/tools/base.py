"""What a tool is and what it may touch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from hermes_queue.sandbox.context import SlotContext


class Arguments(BaseModel):
    """Base of a tool's arguments: closed, so that a misspelt name is told to the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The slot and the bounds a tool call has to keep."""

    slot: SlotContext
    timeout_s: float
    observation_bytes: int


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The observation the model gets. `ok` feeds the counters, not the score."""

    text: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    """A name, a pydantic model of the arguments, and what it does with them."""

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[ToolContext, Any], Awaitable[ToolResult]]
    """Raises `SandboxError` only; everything the model caused is a `ToolResult`."""
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
