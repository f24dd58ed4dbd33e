"""The agent loop and who acts in it.

chat.py      what the loop needs from a model or a script
context.py   keeps a conversation within the model's context
loop.py      model, tool calls, observations, until a stop reason holds
prices.py    what model calls cost
registry.py  agents by name
scripted.py  what agents that need no model are made of
endpoint/    calls of model servers
kinds/       the agents
parsers/     tool calls that a server left as text
tokens/      exact token ids and logprobs
"""

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.endpoint.limiter import Limiter, Permit, Unlimited
from hermes_queue.agent.loop import AgentResult, run_agent
from hermes_queue.agent.registry import AgentScript, make_chat
from hermes_queue.agent.tokens.merge import merge_turns

__all__ = [
    "AgentResult",
    "AgentScript",
    "ChatClient",
    "Limiter",
    "Permit",
    "Reply",
    "Unlimited",
    "make_chat",
    "merge_turns",
    "run_agent",
]
