"""The agent that is a program in the slot, unchanged; its model calls come to the worker."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from hermes_queue.agent.kinds.openai import openai
from hermes_queue.agent.parameters import OpenAIParams
from hermes_queue.agent.registry import Agent


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


AGENT = Agent(openai, CommandParams, in_slot=True)
"""Makes the chat client that answers the program's calls."""
