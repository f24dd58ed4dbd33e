"""The agent that is a program in the slot, unchanged; its model calls come to the worker."""

from __future__ import annotations

from hermes_queue.agent.kinds.openai import openai
from hermes_queue.agent.parameters import CommandParams
from hermes_queue.agent.registry import Agent

AGENT = Agent(openai, CommandParams, in_slot=True)
"""Makes the chat client that answers the program's calls."""
