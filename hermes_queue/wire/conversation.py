"""Messages and tool calls in OpenAI's format."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Base of all wire models."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FunctionCall(Wire):
    """Name and arguments of a tool call. `arguments` is the model's own text, valid JSON or not."""

    name: str
    arguments: str


class ToolCall(Wire):
    """One tool call of the model."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Wire):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """The message as an OpenAI-compatible endpoint takes it, without empty optional fields."""
        data = self.model_dump(mode="json", exclude_none=True, exclude={"reasoning"})
        if not self.tool_calls:
            del data["tool_calls"]
        data.setdefault("content", None if self.tool_calls else "")
        return data
