"""The agent of the harness: the gold answer, at a price in tokens that is also written down."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.kinds.oracle import write
from hermes_queue.agent.parameters import AgentParams
from hermes_queue.agent.registry import Agent, AgentScript
from hermes_queue.agent.scripted import ResumedScript, Scripted
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.disk.durable import append_line
from hermes_queue.models import AgentSpec, Message, Usage
from hermes_queue.settings import ModelSettings

SPENT = "CHAOS_SPENT"
"""Environment variable: the file to which the tokens of each reply are appended."""


def usage_of(trajectory_id: str) -> Usage:
    """What each reply in a trajectory costs."""
    prompt = 100 + hashlib.sha256(trajectory_id.encode()).digest()[0]
    return Usage(prompt_tokens=prompt, completion_tokens=10)


class Spender(Scripted):
    """The oracle's messages, each with the tokens of a model."""

    def __init__(self, script: AgentScript) -> None:
        super().__init__(partial(write, AgentParams(), script))
        self._trajectory_id = script.trajectory_id

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
        *,
        anchor: Anchor | None = None,
    ) -> Reply:
        """The next message; its tokens are written down before anybody can count them."""
        reply = await super().complete(messages, tools, sampling, deadline, anchor=anchor)
        usage = usage_of(self._trajectory_id)
        tokens = usage.prompt_tokens + usage.completion_tokens
        line = json.dumps({"trajectory_id": self._trajectory_id, "tokens": tokens})
        append_line(Path(os.environ[SPENT]), line)
        return Reply(reply.message, reply.turn.model_copy(update={"usage": usage}))


class ResumedSpender(Spender, ResumedScript):
    """The same, which another worker continues after any turn."""


def make(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """The agent of one trajectory."""
    return Spender(script)


def make_resumed(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """One that is continued."""
    return ResumedSpender(script)


AGENT = Agent(make)
RESUMED = Agent(make_resumed)
