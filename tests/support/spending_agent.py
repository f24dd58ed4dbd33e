"""An agent that says it has used 100 tokens: `--agent spending_agent:spender`."""

from __future__ import annotations

from hermes_queue.agent.chat import Reply
from hermes_queue.models import Message, Turn, Usage


class _Spender:
    async def complete(self, messages, tools, sampling, deadline):
        usage = Usage(prompt_tokens=90, completion_tokens=10)
        turn = Turn(finish_reason="stop", usage=usage)
        return Reply(Message(role="assistant", content="24"), turn)


def spender(spec, script, settings):
    return _Spender()
