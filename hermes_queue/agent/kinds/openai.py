"""The agent that calls a model, with messages or with token ids."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.endpoint.chat import OpenAIChat
from hermes_queue.agent.parameters import OpenAIParams, read_params
from hermes_queue.agent.registry import Agent, AgentScript
from hermes_queue.agent.tokens.chat import TokenChat
from hermes_queue.models import AgentSpec
from hermes_queue.settings import ModelSettings


def openai(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Calls the model, as `OpenAIParams` say."""
    params = read_params(OpenAIParams, spec.params, "agent openai")
    chat = TokenChat if params.mode == "tokens" else OpenAIChat
    return chat(spec, params, script, settings)


AGENT = Agent(openai, OpenAIParams)
