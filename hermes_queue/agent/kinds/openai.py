"""The agent that calls a model, with messages or with token ids."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.endpoint.chat import OpenAIChat
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.tokens.chat import TokenChat
from hermes_queue.models import AgentSpec
from hermes_queue.settings import ModelSettings


def openai(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Calls the model in token mode if the params have {"mode": "tokens"}, else with messages."""
    chat = TokenChat if spec.params.get("mode") == "tokens" else OpenAIChat
    return chat(spec, script, settings)


AGENT = openai
