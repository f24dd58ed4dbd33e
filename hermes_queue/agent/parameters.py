"""Parameters of agents (`AgentSpec.params`): which there are, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from hermes_queue.errors import ModelConfigError

ContextPolicy = Literal["error", "truncate_tools", "drop_oldest"]
"""error: nothing is rewritten, the trajectory ends with `context_length`. truncate_tools: the
middle of old tool outputs is cut out. drop_oldest: the oldest assistant messages are left out,
each with the results of its calls."""


class AgentParams(BaseModel):
    """The parameters that every agent takes; an agent with more of them derives its own class."""

    model_config = ConfigDict(frozen=True)

    context: ContextPolicy = "error"
    context_tokens: int | None = Field(default=None, ge=1, strict=True)
    """Limit of prompt and completion together; None = unknown until the server refuses one."""


class OpenAIParams(AgentParams):
    """Parameters of the agent `openai` (docs/models.md)."""

    mode: Literal["messages", "tokens"] = "messages"
    server: str = "vllm"
    """Name of the token server in token mode."""
    tools: Literal["native", "prompted"] = "native"
    parser: str | None = None
    """Name of a parser for tool calls that arrive as text."""
    probe_tools: bool = True
    """Whether `ToolProbe` checks that the model sees its tools."""
    token_ids: bool = False
    """Request token ids and logprobs, and fail without them."""
    logprobs_mode: str | None = None
    """Recorded with the logprobs; None = the result of `server_facts`."""
    policy_version: Literal["server", "model"] = "server"
    """`model`: the model name in the answer is the policy version."""

    @field_validator("mode", "probe_tools", "token_ids", mode="before")
    @classmethod
    def _none_is_not_given(cls, value: Any, info: ValidationInfo) -> Any:
        # Programs fill these in from options of their own.
        return cls.model_fields[str(info.field_name)].default if value is None else value


class CommandParams(OpenAIParams):
    """Parameters of the agent `command` (docs/programs.md), with those of the model behind it."""

    program: str | dict[str, Any] = Field(min_length=1)
    """Name of a bundled program, or the whole definition of one."""
    history: Literal["sampled", "agent"] | None = None
    """Where a program sends replies back without their reasoning: `sampled` continues from what the
    model has said; `agent` shows the model what the program sent. None = `sampled` in token
    mode."""

    @field_validator("context")
    @classmethod
    def _keeps_its_own(cls, value: str) -> str:
        if value != "error":
            raise ValueError("a program keeps its own conversation: leave the parameter out")
        return value

    @field_validator("context_tokens")
    @classmethod
    def _is_not_told(cls, value: int | None) -> int | None:
        if value is not None:
            raise ValueError("a program learns of the context from the server: leave it out")
        return value


ParamsT = TypeVar("ParamsT", bound=AgentParams)


def read_params(model: type[ParamsT], values: Mapping[str, Any], agent: str = "agent") -> ParamsT:
    """The parameters of a job; others are ignored. Raises ModelConfigError, begun with `agent`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        given = f", not {first['input']!r:.100}" if name else ""
        raise ModelConfigError(f"{agent}: {name or 'parameters'}: {first['msg']}{given}") from error
