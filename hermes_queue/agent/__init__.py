"""The agent loop and the agents.

budget.py      limits of one attempt
chat.py        interface of a model server or a scripted agent
context.py     keeps a conversation within the model's context
fault.py       whether a failed call is the fault of the server or of what was asked
loop.py        model call, tool calls, observations, until a stop reason applies
parameters.py  parameters of agents
prices.py      prices of model calls
registry.py    agents by name
resumption.py  continuing after turns that another worker has run
scripted.py    common parts of agents that need no model
capture/       model calls of programs in the slot
endpoint/      calls of model servers
kinds/         the agents
parsers/       parsers for tool calls that a server left as text
programs/      unmodified programs as agents
tokens/        exact token ids and logprobs
"""

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.endpoint.limiter import Limiter, Permit, Unlimited
from hermes_queue.agent.loop import AgentResult, run_agent
from hermes_queue.agent.parameters import AgentParams, read_params
from hermes_queue.agent.registry import Agent, AgentScript, make_chat

__all__ = [
    "Agent",
    "AgentParams",
    "AgentResult",
    "AgentScript",
    "ChatClient",
    "Limiter",
    "Permit",
    "Reply",
    "Unlimited",
    "make_chat",
    "read_params",
    "run_agent",
]
