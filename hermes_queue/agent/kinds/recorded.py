"""No agent: the job of a regrade, which has the work of an older trajectory put back."""

from __future__ import annotations

from typing import Any

from hermes_queue.agent.parameters import AgentParams, read_params
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import scripted
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, Message, Regraded

KIND = "recorded"


class RecordedParams(AgentParams):
    """What `hermes-queue regrade` takes from a record."""

    outcome: dict[str, Any]
    """The work, as the env's `outcome` gave it."""
    record: Regraded


def recorded_params(agent: AgentSpec) -> RecordedParams | None:
    """The parameters of a regrade; None of any other job. Raises ModelConfigError."""
    if agent.kind != KIND:
        return None
    return read_params(RecordedParams, agent.params, "agent recorded")


def regraded_of(agent: AgentSpec) -> Regraded | None:
    """The record whose work a job measures again; None of any other job, or of an invalid one."""
    try:
        params = recorded_params(agent)
    except ModelConfigError:
        return None
    return params.record if params else None


async def write(params: RecordedParams, script: AgentScript) -> list[Message]:
    """Refuse a turn: there is nobody who could take one."""
    raise ModelConfigError("agent recorded takes no turns: `hermes-queue regrade` makes its jobs")


AGENT = scripted(write, RecordedParams, resumes=False)
