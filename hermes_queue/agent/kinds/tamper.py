"""The agent that tries to cheat the verifier."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import Scripted, act, say
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings


def tamper(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Tries to cheat the verifier. Params: {"case": name}, default: one case per sample index.

    Stops at once if the env has no cases.
    """
    names = sorted(script.tamper)
    case = spec.params.get("case")
    if case is None and names:
        case = names[script.sample_index % len(names)]
    if case is not None and case not in script.tamper:
        raise ModelConfigError(
            f"agent tamper: unknown case {case!r}; known: {', '.join(names) or 'none'}"
        )

    async def write() -> list[Message]:
        steps = script.tamper[case] if case is not None else ()
        return [say(step) if isinstance(step, str) else act(step) for step in steps]

    return Scripted(write)


AGENT = tamper
