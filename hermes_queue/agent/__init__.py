"""The agent loop and the chat clients it talks to."""

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.endpoint.limiter import Limiter, Permit, Unlimited
from hermes_queue.agent.loop import AgentResult, run_agent
from hermes_queue.agent.registry import AgentScript, known_agents, make_chat
from hermes_queue.agent.tokens.merge import merge_turns

__all__ = [
    "AgentResult",
    "AgentScript",
    "ChatClient",
    "Limiter",
    "Permit",
    "Reply",
    "Unlimited",
    "known_agents",
    "make_chat",
    "merge_turns",
    "run_agent",
]
